"""Whole checks with noise as a function of the sample, or where that is impossible."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddpcheck.checking import checking
from ddpcheck.ranks.pool import Pool
from ddpcheck.report.data import Report
from ddpcheck.target.options import Options
from ddpcheck.target.target import TargetRef
from tests.diagnose.head import STEP

HEAD = """\
import torch
from torch import nn

def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.RReLU(), nn.Linear(6, 3))

def batch():
    g = torch.Generator().manual_seed(1)
    return torch.randn(8, 4, generator=g), torch.arange(8) % 3

loss = nn.CrossEntropyLoss()
"""
MIXED = """
    order = torch.randperm(len(x))
    loss(model(0.7 * x + 0.3 * x[order]), y).backward()
    optimizer.step()
"""
ONE_BY_ONE = """
    x = torch.stack([row * torch.rand(1) for row in x])
    loss(model(x), y).backward()
    optimizer.step()
"""
MICRO = """
    for part, target in zip(x.chunk(2), y.chunk(2)):
        (loss(model(part), target) / 2).backward()
    optimizer.step()
"""
SEEDED = """
    torch.manual_seed(SEED)
    loss(model(x), y).backward()
    optimizer.step()
"""
OWN_SEED = "torch.distributed.get_rank() if torch.distributed.is_initialized() else 0"


def _check(pool: Pool, folder: Path, source: str, mode: str = "ddp") -> Report:
    path = folder / "mymodel.py"
    path.write_text(HEAD + source, encoding="utf-8")
    options = Options(world_sizes=(2,), modes=(mode,), noise="sample", steps=2)
    return checking.check(pool, TargetRef(path=str(path)), options)


@pytest.mark.parametrize(
    ("step", "why"),
    [
        (MIXED, "randperm draws (4,) where the reference draws (8,)"),
        (ONE_BY_ONE, "a draw of shape (4, 6) where the reference draws (1,)"),
        (
            MICRO,
            "a draw for 4 of 8 samples: parts of a batch that are computed one after "
            "the other are other samples on a rank",
        ),
    ],
    ids=["permutation", "one by one", "micro-batches"],
)
def test_noise_that_cannot_follow_the_sample_is_not_judged(
    step: str, why: str, pool: Pool, tmp_path: Path
) -> None:
    report = _check(pool, tmp_path, STEP + step)
    assert (report.verdict, report.findings) == ("not-checked", ())
    (run,) = report.runs
    assert run.why == f"noise cannot follow the sample in this step: {why}"
    assert (run.faults, run.losses.compared) == ((), 0)


@pytest.mark.parametrize("mode", ["ddp", "dp"])
def test_slopes_that_are_written_to_an_argument_follow_the_sample(
    mode: str, pool: Pool, tmp_path: Path
) -> None:
    report = _check(pool, tmp_path, "", mode)
    assert (report.verdict, report.warnings) == ("equivalent", ())


def test_generators_in_one_state_are_warned_of(pool: Pool, tmp_path: Path) -> None:
    report = _check(pool, tmp_path, STEP + SEEDED.replace("SEED", "5"))
    assert (report.verdict, report.findings) == ("equivalent", ())
    (warning,) = report.warnings
    assert warning.startswith("the generators of all ranks are in the same state")
    assert warning.endswith("draw the same noise (rng/same-stream-all-ranks)")


def test_generators_seeded_by_rank_are_not_warned_of(
    pool: Pool, tmp_path: Path
) -> None:
    report = _check(pool, tmp_path, STEP + SEEDED.replace("SEED", OWN_SEED))
    assert (report.verdict, report.warnings) == ("equivalent", ())
