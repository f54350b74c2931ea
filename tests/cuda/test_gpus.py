"""The same checks on GPUs, and torch's GPU modules against our equivalents.

`pytest -m cuda` runs these alone; without GPUs each says what it needs.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ddpcheck.checking import checking
from ddpcheck.ranks import devices
from ddpcheck.ranks.messages import Job
from ddpcheck.ranks.pool import SOLO, Pool
from ddpcheck.report.data import Report
from ddpcheck.target.options import Options
from ddpcheck.target.target import TargetRef

# Workers of xdist would share the GPUs: one of them runs all of these.
pytestmark = pytest.mark.xdist_group("cuda")

HEAD = """\
import torch
import torch.nn.functional as F
from torch import nn

def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))

def batch():
    torch.manual_seed(1)
    y = torch.randint(0, 3, (8,))
    y[:3] = -100
    return torch.randn(8, 6), y

"""
MEAN = (
    HEAD
    + """\
def loss(output, target):
    return output.pow(2).mean()
"""
)
MASKED = (
    HEAD
    + """\
def loss(output, target):
    return F.cross_entropy(output, target, ignore_index=-100)
"""
)


@pytest.fixture
def gpus(pool: Pool) -> Iterator[Pool]:
    """The session's engine, its ranks on GPUs."""
    pool.device = "cuda"
    yield pool
    pool.device = "cpu"


def _check(pool: Pool, source: str, folder: Path, **options: Any) -> Report:
    path = folder / "mymodel.py"
    path.write_text(source, encoding="utf-8")
    wanted = Options(device="cuda", world_sizes=(2,), **options)
    return checking.check(pool, TargetRef(path=str(path)), wanted)


def _run(pool: Pool, name: str, size: int, /, **arguments: Any) -> list[Any]:
    job = Job(function=f"tests.cuda.jobs:{name}", arguments=arguments)
    outcomes = pool.run(job, size)
    assert {o.kind for o in outcomes} == {"done"}, outcomes
    return [o.value for o in outcomes]


@pytest.mark.cuda(1)
def test_sound_target_is_equal_on_one_gpu(gpus: Pool, tmp_path: Path) -> None:
    report = _check(gpus, MEAN, tmp_path)
    assert (report.verdict, report.tolerance.rtol) == ("equivalent", 1e-9)
    assert report.environment["device"] == "cuda"
    assert {run.mode for run in report.runs} == {"dp", "ddp"}


@pytest.mark.cuda(1)
def test_cause_is_found_and_its_fix_verified(gpus: Pool, tmp_path: Path) -> None:
    report = _check(gpus, MASKED, tmp_path, modes=("ddp",))
    (finding,) = report.findings
    assert finding.slug == "loss/local-normalizer"
    assert finding.fix is not None
    assert finding.fix.verified is True


@pytest.mark.cuda(1)
def test_ranks_that_share_a_gpu_talk_through_gloo(gpus: Pool) -> None:
    count, world_size = devices.count(), 2 * devices.count()
    total = float(sum(range(world_size + 1)))
    expected = [("gloo", rank % count, total) for rank in range(world_size)]
    assert _run(gpus, "backend", world_size) == expected


@pytest.mark.cuda(1)
def test_rank_with_a_gpu_of_its_own_talks_through_nccl(gpus: Pool) -> None:
    assert _run(gpus, "backend", 1) == [("nccl", 0, 1.0)]


@pytest.mark.cuda(2)
def test_ranks_with_a_gpu_each_talk_through_nccl(gpus: Pool) -> None:
    assert _run(gpus, "backend", 2) == [("nccl", 0, 3.0), ("nccl", 1, 3.0)]


@pytest.mark.cuda(1)
@pytest.mark.parametrize("sizes", [[4, 4], [5, 3]], ids=["even", "uneven"])
def test_our_sync_batch_norm_is_torchs(gpus: Pool, sizes: list[int]) -> None:
    assert max(_run(gpus, "sync_batch_norm", 2, sizes=sizes)) < 1e-12


@pytest.mark.cuda(2)
@pytest.mark.parametrize("num_samples", [8, 5, 4])
def test_emulated_data_parallel_is_torchs(gpus: Pool, num_samples: int) -> None:
    arguments = {"world_size": 2, "num_samples": num_samples}
    assert _run(gpus, "data_parallel", SOLO, **arguments)[0] < 1e-12


@pytest.mark.cuda(1)
@pytest.mark.parametrize(("world_size", "num_samples"), [(2, 8), (2, 5), (3, 8)])
def test_emulated_data_parallel_is_torchs_on_one_gpu(
    gpus: Pool, world_size: int, num_samples: int
) -> None:
    arguments = {"world_size": world_size, "num_samples": num_samples}
    assert _run(gpus, "data_parallel_on_one", SOLO, **arguments)[0] < 1e-12


@pytest.mark.cuda(1)
def test_tf32_is_a_warning(gpus: Pool, tmp_path: Path) -> None:
    source = MEAN.replace(
        "from torch import nn",
        "torch.backends.cuda.matmul.allow_tf32 = True\nfrom torch import nn",
    )
    report = _check(gpus, source, tmp_path, dtype="float32")
    assert any(warning.startswith("TF32 is on: ") for warning in report.warnings)


@pytest.mark.cuda(1)
def test_memory_is_given_back_after_a_case(gpus: Pool, tmp_path: Path) -> None:
    _check(gpus, MEAN, tmp_path)  # the libraries take what they work in, and keep it
    (before,) = _run(gpus, "allocated", SOLO)
    large = MEAN.replace("(8, 6)", "(8, 1 << 20)").replace("(6, 5)", "(1 << 20, 5)")
    _check(gpus, large, tmp_path)
    (after,) = _run(gpus, "allocated", SOLO)
    assert after - before < 16 << 20  # the model has 40 MiB, its batch 64
