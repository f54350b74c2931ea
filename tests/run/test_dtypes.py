"""In which dtype a target is run, and why: cast, or with the tensors that it makes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ddpcheck.checking import checking
from ddpcheck.errors.problem import UsageError
from ddpcheck.ranks.pool import Pool
from ddpcheck.report.data import Report
from ddpcheck.target.options import Options
from ddpcheck.target.target import TargetRef

pytestmark = pytest.mark.usefixtures("no_file")

TARGET = """
import torch
from torch import nn

class Net(nn.Sequential):
    def forward(self, x):
        REFUSES
        return super().forward(x)

def model():
    torch.manual_seed(0)
    return Net(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1)).to(torch.OWN)

def batch():
    x = torch.randn(32, 8, generator=torch.Generator().manual_seed(1))
    x = x.to(torch.GIVEN)
    return x, x.sum(1, keepdim=True)

def loss(output, target):
    return nn.functional.mse_loss(output, target, reduction="REDUCTION") / SIZE
"""
ASKS = "assert x.dtype == torch.GIVEN, x.dtype"
TAKES = "x = x.to(torch.OWN)"
GOES_BACK = "self.to(torch.OWN); x = x.to(torch.OWN)"


def _check(
    pool: Pool,
    folder: Path,
    refuses: str,
    own: str = "bfloat16",
    given: str = "",
    *,
    dtype: str = "auto",
    reduction: str = "mean",
    modes: tuple[str, ...] = ("ddp",),
) -> Report:
    source = TARGET.replace("REFUSES", refuses).replace("REDUCTION", reduction)
    source = source.replace("SIZE", "32" if reduction == "sum" else "1")
    source = source.replace("OWN", own).replace("GIVEN", given or own)
    path = folder / "target.py"
    path.write_text(source, encoding="utf-8")
    simulate = (2,) if len(modes) > 1 else ()
    options = Options(world_sizes=(2,), modes=modes, dtype=dtype, simulate=simulate)
    return checking.check(pool, TargetRef(path=str(path)), options)


def _warning(dtype: str, error: str) -> str:
    return (
        f"the model refuses to be cast, so it ran in {dtype}, with the tensors that "
        f"the target makes: {error}"
    )


BACK = "its forward casts 0.weight to torch."


@pytest.mark.parametrize(
    ("refuses", "own", "error"),
    [
        (ASKS, "bfloat16", "AssertionError: torch.float32"),
        (ASKS, "float16", "AssertionError: torch.float32"),
        (GOES_BACK, "bfloat16", f"DtypeRefusedError: {BACK}bfloat16"),
        (GOES_BACK, "float16", f"DtypeRefusedError: {BACK}float16"),
    ],
)
def test_model_that_refuses_all_casts_runs_with_its_own_tensors(
    refuses: str, own: str, error: str, pool: Pool, tmp_path: Path
) -> None:
    report = _check(pool, tmp_path, refuses, own, modes=("dp", "ddp"))
    assert [(r.mode, r.dtype, r.verdict) for r in report.runs] == [
        ("dp", own, "equivalent"),
        ("ddp", own, "equivalent"),
        ("sim", own, "equivalent"),
    ]
    assert report.warnings == (_warning(own, error),)
    assert report.tolerance.origin == f"{own} default"


def test_model_that_casts_its_input_runs_with_its_own_tensors(
    pool: Pool, tmp_path: Path
) -> None:
    report = _check(pool, tmp_path, TAKES, "bfloat16", "float32")
    assert [(run.dtype, run.verdict) for run in report.runs] == [
        ("bfloat16", "equivalent")
    ]
    (warning,) = report.warnings
    assert warning.startswith(_warning("bfloat16", "RuntimeError: "))


def test_batch_of_another_dtype_than_the_model_is_left_as_it_is(
    pool: Pool, tmp_path: Path
) -> None:
    refuses = "assert x.dtype == torch.float64, x.dtype; x = x.float()"
    report = _check(pool, tmp_path, refuses, "float32", "float64")
    assert [(run.dtype, run.verdict) for run in report.runs] == [
        ("float32", "equivalent")
    ]
    assert report.warnings == (_warning("float32", "AssertionError: torch.float32"),)


def test_default_dtype_of_the_file_holds_for_its_own_tensors(tmp_path: Path) -> None:
    refuses = "assert x.dtype == torch.zeros(1).dtype == torch.bfloat16"
    source = TARGET.replace("REFUSES", refuses).replace("REDUCTION", "mean")
    source = source.replace("SIZE", "1")
    source = source.replace(".to(torch.OWN)", "").replace("x = x.to(torch.GIVEN)", "")
    source = source.replace(
        "class Net", "torch.set_default_dtype(torch.bfloat16)\nclass Net"
    )
    path = tmp_path / "target.py"
    path.write_text(source, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "ddpcheck", str(path), "--world-sizes", "2"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert "batch 32, bfloat16" in done.stdout


def test_model_that_can_be_cast_is_run_in_float64(pool: Pool, tmp_path: Path) -> None:
    report = _check(pool, tmp_path, "pass", "bfloat16")
    assert [(run.dtype, run.verdict) for run in report.runs] == [
        ("float64", "equivalent")
    ]
    assert report.warnings == ()


@pytest.mark.parametrize("own", ["bfloat16", "float16"])
def test_cause_in_a_model_of_low_precision_is_found_and_its_fix_verified(
    own: str, pool: Pool, tmp_path: Path
) -> None:
    report = _check(pool, tmp_path, ASKS, own, reduction="sum")
    (finding,) = report.findings
    assert finding.slug == "loss/missing-world-scale"
    assert finding.fix is not None
    assert finding.fix.verified is True
    script = tmp_path / "reproduce.py"
    script.write_text(report.reproduce, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (1, "")
    assert " relative difference  0.weight" in done.stdout


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
def test_dtype_that_the_model_refuses_is_named_in_the_fix(
    dtype: str, pool: Pool, tmp_path: Path
) -> None:
    with pytest.raises(UsageError) as error:
        _check(pool, tmp_path, ASKS, "bfloat16", dtype=dtype)
    assert error.value.problem.slug == "target-raises"
    assert error.value.problem.fix == (
        f"leave --dtype {dtype} out: the target makes its weights in bfloat16"
    )


def test_autocast_that_the_model_refuses_gives_way_to_its_own_tensors(
    pool: Pool, tmp_path: Path
) -> None:
    report = _check(pool, tmp_path, ASKS, "bfloat16", dtype="bfloat16")
    assert [(run.dtype, run.verdict) for run in report.runs] == [
        ("bfloat16", "equivalent")
    ]
    expected = _warning("bfloat16", "AssertionError: torch.float32")
    assert report.warnings == (expected,)


def test_target_that_trains_in_no_dtype_is_told_its_own_error(
    pool: Pool, tmp_path: Path
) -> None:
    with pytest.raises(UsageError) as error:
        _check(pool, tmp_path, "raise KeyError(str(x.dtype))", "bfloat16")
    found = error.value.problem.found
    assert found.startswith("KeyError: 'torch.bfloat16', at ")
    assert error.value.problem.fix == "make one plain training step work first"
