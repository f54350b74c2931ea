"""Failures of ddpcheck itself are reported as such, never as the target's mistake."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ddpcheck.checking import checking
from ddpcheck.diagnose import engine
from ddpcheck.diagnose.fixed import check
from ddpcheck.errors import frames
from ddpcheck.ranks.pool import Pool
from ddpcheck.report.data import Report
from ddpcheck.run.session import noise_floor
from ddpcheck.run.session.session import CannotCheckError, InternalError
from ddpcheck.target.options import Options
from ddpcheck.target.target import TargetRef

# The target takes away what our code needs: the line that fails is ours.
TARGET = """
import torch
from torch import nn
import torch.distributed as dist
from ddpcheck.run.model import names
from ddpcheck.diagnose.probes import modules

def model():
    torch.manual_seed(0)
    return nn.Linear(8, 1)

def batch():
    x = torch.randn(32, 8, generator=torch.Generator().manual_seed(1))
    return x, x.sum(1, keepdim=True)

def loss(output, target):
    return nn.functional.mse_loss(output, target, reduction="REDUCTION")
"""


def _check(pool: Pool, folder: Path, broken: str, reduction: str = "sum") -> Report:
    path = folder / "target.py"
    source = TARGET.replace("REDUCTION", reduction) + broken
    path.write_text(source, encoding="utf-8")
    options = Options(world_sizes=(2,), modes=("ddp",))
    return checking.check(pool, TargetRef(path=str(path)), options)


def test_failure_of_ours_in_one_process_is_an_internal_error(
    pool: Pool, tmp_path: Path
) -> None:
    with pytest.raises(InternalError) as caught:
        _check(pool, tmp_path, "names.contents = None\n")
    assert caught.value.message == (
        "AttributeError: 'NoneType' object has no attribute 'modules'"
    )
    assert "ddpcheck/run/model/names.py" in caught.value.detail


def test_failure_of_ours_in_a_probe_leaves_the_verdict_and_is_warned_of(
    pool: Pool, tmp_path: Path
) -> None:
    try:
        report = _check(pool, tmp_path, "modules.contents = None\n")
    finally:  # the ranks serve other tests, too
        mended = _check(pool, tmp_path, "modules.contents = names.contents\n")
    assert [f.slug for f in mended.findings] == ["loss/sum-reduction"]
    assert (report.verdict, report.exit_code) == ("divergent", 1)
    assert [f.slug for f in report.findings] == ["unknown"]
    (warning,) = [w for w in report.warnings if w.startswith("internal error")]
    assert warning.startswith(
        "internal error of ddpcheck, please report it: AttributeError: 'NoneType' "
        "object has no attribute 'named_modules' (modules.py:"
    )


def test_failure_of_the_search_leaves_the_verdict_and_an_unknown_cause(
    pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(engine, "Search")
    report = _check(pool, tmp_path, "")
    assert (report.verdict, report.exit_code) == ("divergent", 1)
    (finding,) = report.findings
    assert (finding.slug, finding.runs, finding.summary) == (
        "unknown",
        (0,),
        "the cause is unknown: ddpcheck itself failed while it looked for it",
    )
    assert re.sub(r":\d+", ":N", report.warnings[-1]) == (
        "internal error of ddpcheck, please report it: NameError: name 'Search' is not "
        "defined (engine.py:N in _search)"
    )


@pytest.mark.parametrize(
    ("reduction", "verdict", "code"),
    [("sum", "divergent", 1), ("mean", "not-checked", 3)],
)
def test_failure_of_ours_after_the_runs_leaves_their_verdicts(
    reduction: str,
    verdict: str,
    code: int,
    pool: Pool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(noise_floor, "measure")
    report = _check(pool, tmp_path, "", reduction)
    assert (report.verdict, report.exit_code) == (verdict, code)
    assert [run.world_size for run in report.runs] == [2]
    assert report.ended.startswith(
        "internal error of ddpcheck: AttributeError: module 'ddpcheck.run.session."
    )
    (warning,) = report.warnings
    assert warning.startswith("internal error of ddpcheck, please report it: ")


def test_failure_to_write_fixed_py_leaves_the_cause_and_its_proof_by_a_run(
    pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(check, "choose")
    report = _check(pool, tmp_path, "")
    (finding,) = report.findings
    assert finding.fix is not None
    assert (finding.slug, finding.fix.proof) == ("loss/sum-reduction", "intervention")
    assert report.fixed == ""
    assert re.sub(r":\d+", ":N", report.warnings[-1]) == (
        "internal error of ddpcheck, please report it: NameError: name 'choose' is not "
        "defined (check.py:N in make)"
    )


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("def loss(output):\n    return output.sum()\n", "TypeError: loss() takes 1"),
        ("def optimizer():\n    return None\n", "TypeError: optimizer() takes 0"),
        ("def batch(a, b):\n    return None\n", "TypeError: batch() missing 1"),
        ("import functools\nloss = functools.partial(torch.mm)\n", "RuntimeError: "),
        ("def model():\n    return nn.Linear(7, 1)\n", "RuntimeError: mat1 and mat2"),
        ("def loss(o, t):\n    return torch.arange('a')\n", "TypeError: arange(): "),
    ],
    ids=["loss", "optimizer", "batch", "no-frame", "shapes", "hook"],
)
def test_mistake_of_the_target_without_a_frame_of_its_own_stays_its_own(
    source: str, expected: str, pool: Pool, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match="target-raises") as caught:
        _check(pool, tmp_path, source)
    assert not isinstance(caught.value, CannotCheckError)
    assert expected in str(caught.value)


OWN = Path(checking.__file__).parents[1]


def _stack(*places: tuple[str, int]) -> str:
    return "".join(f'  File "{file}", line {line}, in f\n' for file, line in places)


def _line(file: str, text: str) -> tuple[str, int]:
    """Returns the place of the line of ours that holds a text."""
    lines = (OWN / file).read_text(encoding="utf-8").splitlines()
    return f"{OWN}/{file}", next(i for i, x in enumerate(lines, 1) if text in x)


USERS = ("/home/me/train.py", 3)
TORCH = ("/venv/lib/python3.11/site-packages/torch/_tensor.py", 3)


@pytest.mark.parametrize(
    ("places", "is_own"),
    [
        # Below user code, in a hook of ours: in our own line, or in what it hands on.
        ((USERS, _line("run/observe/observe.py", "(*args")), False),
        ((USERS, _line("run/model/finite.py", "return")), True),
        ((_line("run/modes/jobs/reference.py", "self.size = size"),), True),
        ((_line("run/modes/jobs/reference.py", "self.size = size"), TORCH), True),
        ((_line("run/modes/jobs/reference.py", "self.size = size"), USERS), False),
        ((USERS, _line("run/model/finite.py", "return"), TORCH), False),
        ((_line("run/steps.py", "value.backward()"), TORCH), False),
        ((_line("run/steps.py", "self.loss(output"),), False),
        ((_line("run/modes/jobs/reference.py", "raise does_not_train"),), False),
        ((_line("diagnose/probes/rank.py", "torch.stack"), TORCH), False),
        ((USERS,), False),
        ((), False),
    ],
)
def test_stack_shows_where_the_failure_comes_from(
    places: tuple[tuple[str, int], ...], *, is_own: bool
) -> None:
    assert (frames.raised_in_own_work(_stack(*places)) is not None) is is_own
