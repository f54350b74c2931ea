"""Rounding of lower precisions inside a float64 run is no difference of training."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddpcheck.checking import checking
from ddpcheck.ranks.pool import Pool
from ddpcheck.report.data import Report
from ddpcheck.target.options import Options
from ddpcheck.target.target import TargetRef

pytestmark = [pytest.mark.corpus, pytest.mark.usefixtures("causes_alone")]

# As products of matrices do, `scaled` rounds by how many rows there are.
TARGET = """\
import torch
import torch.distributed as dist
from torch import nn

def scaled(x):
    factor = 1 + len(x) / 3
    return x.float() * factor / factor

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(6, 3)
    def forward(self, x):
        FEATURES
        return self.head(x)

def model():
    torch.manual_seed(0)
    return Net()

def batch():
    noise = torch.Generator().manual_seed(1)
    return torch.randn(8, 6, generator=noise), torch.arange(8) % 3

def loss(output, target):
    ranks = dist.get_world_size() if dist.is_initialized() else 1
    return nn.functional.cross_entropy(output, target) * (1 + FAULT * (ranks - 1))
"""
USED = "x = scaled(x).to(x.dtype)"
LOGGED = "self.norm = float(scaled(x).norm())"
LOW = """\
w = self.head.weight.to(torch.DTYPE)
        x = x + (x.to(w.dtype) @ w.T @ w).to(x.dtype)"""
COUNTED = "x = x / (x > 0).float().sum(1).long().clamp(min=1)[:, None]"


def _check(pool: Pool, folder: Path, features: str, fault: str = "0.0") -> Report:
    path = folder / "mymodel.py"
    source = TARGET.replace("FEATURES", features).replace("FAULT", fault)
    path.write_text(source, encoding="utf-8")
    options = Options(world_sizes=(2,), modes=("ddp",))
    return checking.check(pool, TargetRef(path=str(path)), options)


def test_rounding_by_the_number_of_rows_is_rounding(pool: Pool, tmp_path: Path) -> None:
    report = _check(pool, tmp_path, USED)
    assert report.verdict == "equivalent"
    assert 32 * 2.0**-24 <= report.tolerance.rtol < 1e-5
    assert "with float32 rounded otherwise" in report.tolerance.origin
    worst = report.runs[0].gradients.worst
    assert worst is not None
    assert worst.rel_diff > 1e-9


def test_small_fault_is_found_beside_float32(pool: Pool, tmp_path: Path) -> None:
    report = _check(pool, tmp_path, USED, "1e-3")
    assert report.verdict == "divergent"


@pytest.mark.parametrize("features", ["pass", LOGGED, COUNTED])
def test_float32_that_gradients_do_not_depend_on_loosens_nothing(
    features: str, pool: Pool, tmp_path: Path
) -> None:
    report = _check(pool, tmp_path, features, "3e-8")
    assert report.verdict == "divergent"
    assert (report.tolerance.rtol, report.tolerance.origin) == (1e-9, "float64 default")


@pytest.mark.parametrize(("dtype", "rtol"), [("bfloat16", 4e-2), ("float16", 5e-3)])
def test_16_bits_inside_are_judged_as_a_run_of_16_bits_is(
    dtype: str, rtol: float, pool: Pool, tmp_path: Path
) -> None:
    report = _check(pool, tmp_path, LOW.replace("DTYPE", dtype))
    assert report.verdict == "equivalent"
    assert report.tolerance.rtol >= rtol
    told = f"the model computes in {dtype} inside"
    assert report.tolerance.origin.endswith(told)
    worst = report.runs[0].gradients.worst
    assert worst is not None
    assert worst.rel_diff > 1e-5


def test_a_fault_beside_16_bits_is_found(pool: Pool, tmp_path: Path) -> None:
    report = _check(pool, tmp_path, LOW.replace("DTYPE", "bfloat16"), "1.0")
    assert [f.slug for f in report.findings] == ["loss/double-world-scale"]
    assert report.findings[0].fix is not None
    assert report.findings[0].fix.verified
