"""Rounding between two calls of model(), and missing seeds."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ddpcheck.checking import checking
from ddpcheck.errors.problem import UsageError
from ddpcheck.ranks.pool import Pool
from ddpcheck.report.data import Report
from ddpcheck.run.record import facts
from ddpcheck.target.options import Options
from ddpcheck.target.target import TargetRef

ONE_ULP = {
    torch.float64: 2.0**-52,
    torch.float32: 2.0**-23,
    torch.bfloat16: 2.0**-7,
    torch.float16: 2.0**-10,
}


@pytest.mark.parametrize("dtype", ONE_ULP, ids=str)
def test_difference_in_the_last_digit_is_rounding(dtype: torch.dtype) -> None:
    reference = torch.tensor([0.25, -1.0], dtype=dtype)
    mine = torch.tensor([0.25, -1.0 - ONE_ULP[dtype]], dtype=dtype)
    assert facts.rounding(reference, mine) == ONE_ULP[dtype]


def test_float32_numbers_in_float64_are_rounded_as_float32() -> None:
    reference = torch.tensor([0.1, -1.0]).double()
    mine = torch.tensor([0.1, -1.0 - 2.0**-23]).double()
    assert facts.rounding(reference, mine) == 2.0**-23
    # In float64 as it is, half of the digits are others.
    wide = torch.tensor([0.1, -1.0], dtype=torch.float64)
    assert facts.rounding(wide, wide - 2.0**-23) is None


@pytest.mark.parametrize("size", [1e-3, 1.0, float("nan"), float("inf")])
def test_more_than_half_of_the_digits_is_no_rounding(size: float) -> None:
    reference = torch.tensor([0.25, 1.0])
    mine = torch.tensor([0.25 + size, 1.0])
    assert facts.rounding(reference, mine) is None


def test_whole_numbers_do_not_round() -> None:
    reference = torch.tensor([10_000_000])
    assert facts.rounding(reference, reference + 1) is None


# The first process that calls model() makes the plain weights, every other one weights
# that differ in the last digit, as a solver's may.
TARGET = """
import os
from pathlib import Path
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

def is_first():
    path = Path(__file__).with_name("first")
    if not path.exists():
        path.write_text(str(os.getpid()))
    return path.read_text() == str(os.getpid())

class Net(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
        self.register_buffer("grid", torch.linspace(0.5, 2.0, 4))
    def forward(self, x):
        return super().forward(x * self.grid)

def model():
    torch.manual_seed(0)
    net = Net().to(DTYPE)
    if not is_first():
        with torch.no_grad():
            for t in (net[0].weight, net[2].bias, net.grid):
                t[-1] = t[-1] * (1 + STEP)
    return net

def batch():
    x = torch.randn(16, 4, generator=torch.Generator().manual_seed(1))
    return x, x.sum(1, keepdim=True)

def loss(output, target):
    return nn.functional.mse_loss(output, target, reduction=REDUCTION)
"""
NO_SYNC = """
def wrap(model):
    return DistributedDataParallel(model, init_sync=False)
"""


def _check(
    pool: Pool, folder: Path, more: str, modes: tuple[str, ...] = ("ddp",)
) -> Report:
    path = folder / "target.py"
    path.write_text(TARGET + more, encoding="utf-8")
    simulate = (4,) if "sim" in modes else ()
    modes = tuple(mode for mode in modes if mode != "sim")
    options = Options(world_sizes=(2,), modes=modes, simulate=simulate)
    return checking.check(pool, TargetRef(path=str(path)), options)


FLOAT32 = "DTYPE, STEP, REDUCTION = torch.float32, 2.0**-23, 'mean'\n"
FLOAT64 = "DTYPE, STEP, REDUCTION = torch.float64, 2.0**-52, 'mean'\n"


@pytest.mark.parametrize(
    ("wrap", "modes"), [("", ("ddp", "dp", "sim")), (NO_SYNC, ("ddp",))]
)
@pytest.mark.parametrize(
    ("constants", "size"), [(FLOAT32, "1.25e-07"), (FLOAT64, "2.32e-16")]
)
def test_weights_that_differ_by_rounding_are_warned_of_and_made_equal(
    constants: str,
    size: str,
    wrap: str,
    modes: tuple[str, ...],
    pool: Pool,
    tmp_path: Path,
) -> None:
    report = _check(pool, tmp_path, constants + wrap, modes)
    found = [(run.mode, run.verdict) for run in report.runs]
    assert found == [(mode, "equivalent") for mode in modes]
    assert [w for w in report.warnings if "find_unused" not in w] == [
        "two calls of model() differ by rounding: 0.weight and 2 other tensors, by at "
        f"most {size} of the largest value; all runs begin with the same weights"
    ]
    worst = [run.weights.worst for run in report.runs]
    assert max(row.rel_diff for row in worst if row) < 1e-14


def test_cause_of_a_divergence_is_found_beside_rounded_weights(
    pool: Pool, tmp_path: Path
) -> None:
    constants = FLOAT32.replace("'mean'", "'sum'")
    report = _check(pool, tmp_path, constants)
    assert [finding.slug for finding in report.findings] == ["loss/sum-reduction"]
    assert report.findings[0].fix is not None
    assert report.findings[0].fix.verified is True


def test_weights_that_differ_by_more_than_rounding_are_refused(
    pool: Pool, tmp_path: Path
) -> None:
    constants = FLOAT32.replace("2.0**-23", "1e-2")
    with pytest.raises(UsageError) as error:
        _check(pool, tmp_path, constants)
    assert error.value.problem.slug == "target-unseeded"
    assert error.value.problem.found == "0.weight differs between two calls of model()"
