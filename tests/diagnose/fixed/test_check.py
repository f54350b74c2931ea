"""What is called verified is equal in plain torch too, in processes of its own."""

from __future__ import annotations

import dataclasses
import importlib.util
import re
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch

import ddpcheck
from ddpcheck.checking import checking
from ddpcheck.diagnose.fixed import draft
from ddpcheck.ranks.pool import Pool
from ddpcheck.report.data import Fix, Report
from ddpcheck.target.options import Options
from ddpcheck.target.target import TargetRef
from tests.diagnose.fixed import judge
from tests.diagnose.fixed.test_fixed import ROUNDING, checked, written
from tests.diagnose.head import HEAD

pytestmark = pytest.mark.usefixtures("no_script")
# Its functions are those of torch.distributed, under names of its own.
GATHERING = """
import torch
from torch.distributed import all_gather, get_world_size, is_initialized
def of_all_ranks(x):
    if not is_initialized():
        return x
    found = [torch.empty_like(x) for _ in range(get_world_size())]
    all_gather(found, x)
    return torch.cat(found)
"""
GATHERED = """
from gathering import of_all_ranks
batch = torch.randn(8, 4), torch.arange(8) % 2
model = nn.Linear(4, 3)
def loss(output, target):
    others, labels = of_all_ranks(output), of_all_ranks(target)
    near = (output @ others.T).logsumexp(1) - (output * others.mean(0)).sum(1)
    if dist.is_initialized():
        assert len(labels) == 8
    return near.mean()
"""


def differences(path: Path) -> list[float]:
    """Returns what a script in plain torch finds of a file at two and four ranks."""
    done = subprocess.run(
        [sys.executable, judge.__file__],
        input=f"{path}\n",
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return list(map(float, done.stdout.split()))


def test_group_is_hidden_from_a_helper_that_imports_functions_by_name(
    pool: Pool, tmp_path: Path
) -> None:
    path = written(tmp_path, HEAD + GATHERED)
    (path.parent / "gathering.py").write_text(GATHERING, encoding="utf-8")
    report = checked(pool, path)
    assert (report.verdict, _proofs(report)) == ("divergent", {"file"})
    fixed = tmp_path / "fixed.py"
    fixed.write_text(report.fixed, encoding="utf-8")
    assert max(differences(fixed)) < ROUNDING


# A file that torch lets a process import only once.
ONCE = """
library = torch.library.Library("imported_once", "DEF")
library.define("twice(Tensor x) -> Tensor")
library.impl("twice", lambda x: 2 * x, "CompositeImplicitAutograd")
model = nn.Linear(4, 3)
def loss(output, target):
    output = torch.ops.imported_once.twice(output)
    return nn.functional.cross_entropy(output, target, reduction="sum")
"""


def _proofs(report: Report) -> set[str | None]:
    return {f.fix.proof for f in report.findings if f.fix}


def test_file_runs_in_ranks_that_have_not_imported_the_target(
    pool: Pool, tmp_path: Path
) -> None:
    report = checked(pool, written(tmp_path, HEAD + ONCE))
    assert (report.verdict, _proofs(report)) == ("divergent", {"file"})


def test_file_runs_in_ranks_of_a_server_that_has_not_imported_the_target(
    tmp_path: Path,
) -> None:
    ref = TargetRef(path=str(written(tmp_path, HEAD + ONCE)))
    options = Options(world_sizes=(2,), modes=("ddp",))
    report = checking.check_file(ref, options)
    assert (report.verdict, _proofs(report)) == ("divergent", {"file"})


SUM = """
model = nn.Linear(4, 3)
def loss(output, target):
    return nn.functional.cross_entropy(output, target, reduction="sum")
"""
TWO = """
model = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))
def loss(output, target):
    return nn.functional.cross_entropy(output, target, reduction="sum")
"""


def _fixes(report: Report) -> list[Fix]:
    return [finding.fix for finding in report.findings if finding.fix]


def test_each_of_two_causes_shows_what_remains_without_its_part(
    pool: Pool, tmp_path: Path
) -> None:
    fixes = _fixes(checked(pool, written(tmp_path, HEAD + TWO)))
    ran = "with fixed.py in place of the file ddp at W=2 and 4 is equal"
    found = [
        re.fullmatch(rf"{ran}; without its part excess (.+) remains", f.intervention)
        for f in fixes
    ]
    assert len(found) == 2
    assert all(one and float(one[1]) > 1 for one in found)


IDLE = """
class Net(nn.Linear):
    def __init__(self):
        super().__init__(4, 3)
        self.unused = nn.Linear(2, 2)
torch.manual_seed(0)
model = Net()
def loss(output, target):
    return nn.functional.cross_entropy(output, target, reduction="sum")
"""


def test_file_of_a_model_with_an_unused_parameter_builds_ddp_for_it(
    pool: Pool, tmp_path: Path
) -> None:
    report = checked(pool, written(tmp_path, HEAD + IDLE))
    assert _proofs(report) == {"file"}
    fixed = tmp_path / "fixed.py"
    fixed.write_text(report.fixed, encoding="utf-8")
    assert max(differences(fixed)) < ROUNDING
    assert "find_unused_parameters=True" in report.fixed


def test_batch_norms_that_ddpcheck_replaces_get_no_file(
    pool: Pool, tmp_path: Path
) -> None:
    path = written(tmp_path, HEAD + TWO)
    options = Options(world_sizes=(2,), modes=("ddp",), batch_norm=("sync",))
    report = checking.check(pool, TargetRef(path=str(path)), options)
    assert [run.batch_norm for run in report.runs] == ["sync"]
    assert (report.fixed, _proofs(report)) == ("", {"intervention"})


def test_one_cause_is_not_left_out(pool: Pool, tmp_path: Path) -> None:
    (fix,) = _fixes(checked(pool, written(tmp_path, HEAD + SUM)))
    assert fix.intervention == (
        "with fixed.py in place of the file ddp at W=2 and 4 is equal"
    )


def test_file_that_trains_otherwise_in_one_process_is_unsafe(
    pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = draft.write
    mean = "\n\ndef loss(o, t):\n    return torch.nn.functional.cross_entropy(o, t)\n"

    def changed(*args: Any) -> draft.Written:
        made = write(*args)
        return dataclasses.replace(made, text=f"{made.text}import torch{mean}")

    monkeypatch.setattr("ddpcheck.diagnose.fixed.draft.write", changed)
    report = checked(pool, written(tmp_path, HEAD + SUM))
    (fix,) = _fixes(report)
    assert (fix.proof, fix.safe) == ("file", False)
    # The mean over 8 samples is an eighth of the sum.
    assert fix.changes == (
        "single-process gradients differ from those of the file: weight in step 1 by "
        "rel diff 0.875"
    )
    assert mean in report.fixed


def test_file_runs_in_every_mode_that_diverges(pool: Pool, tmp_path: Path) -> None:
    path = written(tmp_path, HEAD + SUM)
    options = Options(world_sizes=(2,), modes=("dp", "ddp", "ps"))
    report = checking.check(pool, TargetRef(path=str(path)), options)
    assert [run.verdict for run in report.runs] == [
        "equivalent",  # DataParallel's loss has all samples
        "divergent",
        "divergent",
    ]
    assert _fixes(report)[0].intervention == (
        "with fixed.py in place of the file ddp at W=2 and 4 and ps at W=2 are equal"
    )


NORM = """
model = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))
"""


def test_file_names_the_mode_that_it_does_not_mend(pool: Pool, tmp_path: Path) -> None:
    path = written(tmp_path, HEAD + NORM)
    options = Options(world_sizes=(2,), modes=("dp", "ddp"))
    report = checking.check(pool, TargetRef(path=str(path)), options)
    assert _fixes(report)[0].intervention == (
        "with fixed.py in place of the file ddp at W=2 and 4 is equal, dp at W=2 still "
        "differs"
    )


def _module(path: Path, name: str) -> types.ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.usefixtures("same_generators")
def test_objects_of_a_module_get_a_file(tmp_path: Path) -> None:
    path = written(tmp_path, HEAD + SUM.replace("model =", "net ="))
    with torch.random.fork_rng():
        module = _module(path, "objects_of_a_module")
    try:
        report = ddpcheck.check(
            module.net, module.batch, module.loss, world_sizes=[2], modes=["ddp"]
        )
    finally:
        del sys.modules["objects_of_a_module"]
    assert _proofs(report) == {"file"}
    fixed = tmp_path / "fixed.py"
    fixed.write_text(report.fixed, encoding="utf-8")
    assert "model = original.net\n" in report.fixed
    assert str(ddpcheck.DivergenceError(report)).endswith(report.fixed)
    assert max(differences(fixed)) < ROUNDING
