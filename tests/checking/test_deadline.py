"""The time that the user gives the whole check: what was made by then is reported."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from ddpcheck.checking import checking, scripts
from ddpcheck.errors.problem import DeadlineError
from ddpcheck.ranks.messages import Job
from ddpcheck.ranks.pool import SOLO, Deadline, Pool
from ddpcheck.report.data import Report
from ddpcheck.report.progress import Silent
from ddpcheck.run.session.session import CannotCheckError
from ddpcheck.target import script as target_scripts
from ddpcheck.target.options import Options
from ddpcheck.target.target import TargetRef
from tests.diagnose.head import HEAD

MEAN = HEAD + "model = nn.Linear(4, 3)\n"
SUM = MEAN + "loss = nn.CrossEntropyLoss(reduction='sum')\n"
OPTIONS = Options(world_sizes=(2, 4), modes=("ddp",), deadline_s=600.0)


class Clock(Silent):
    """Progress that ends the time of a check when a phase begins."""

    phase, is_over = "", False

    def __call__(self, doing: str) -> None:
        """Notes the phase."""
        super().__call__(doing)
        self.is_over |= doing.startswith(self.phase)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Decides whether a deadline is over: no test waits for one."""
    made = Clock()

    def check(deadline: Deadline) -> None:
        if made.is_over:
            raise DeadlineError(deadline.limit_s)

    monkeypatch.setattr(Deadline, "check", check)
    return made


def _checked(
    pool: Pool, folder: Path, source: str, clock: Clock, options: Options = OPTIONS
) -> Report:
    path = folder / "target.py"
    path.write_text(source, encoding="utf-8")
    ref = TargetRef(path=str(path))
    return checking.check(pool, ref, options, progress=clock)


def test_deadline_makes_no_verdict_of_equal_runs(
    pool: Pool, clock: Clock, tmp_path: Path
) -> None:
    clock.phase = "making runs, 1 of 2 done"
    report = _checked(pool, tmp_path, MEAN, clock)
    assert [run.verdict for run in report.runs] == ["equivalent"]
    assert (report.verdict, report.exit_code) == ("not-checked", 3)
    assert report.ended == "ended by --deadline-s 600 after 1 of 2 runs"
    # The ranks that were at work are replaced: the next check is complete.
    clock.is_over, clock.phase = False, "no phase"
    again = _checked(pool, tmp_path, MEAN, clock)
    assert (again.verdict, again.ended, len(again.runs)) == ("equivalent", "", 2)


@pytest.mark.parametrize(
    ("phase", "ended", "left"),
    [
        ("making runs, 1 of 2 done", "after 1 of 2 runs", 1),
        ("diagnosing", "in the diagnosis", 0),
    ],
)
@pytest.mark.parametrize("accept", [{}, {"loss/sum-reduction": "known"}])
def test_deadline_reports_the_divergence_that_was_seen(
    phase: str,
    ended: str,
    left: int,
    accept: dict[str, str],
    pool: Pool,
    clock: Clock,
    tmp_path: Path,
) -> None:
    clock.phase = phase
    options = dataclasses.replace(OPTIONS, accept=accept)
    report = _checked(pool, tmp_path, SUM, clock, options)
    assert {run.verdict for run in report.runs} == {"divergent"}
    assert (report.verdict, report.exit_code) == ("divergent", 1)
    assert report.ended == f"ended by --deadline-s 600 {ended}"
    assert len(report.not_compared) == left


@pytest.mark.usefixtures("no_file")
def test_deadline_while_the_script_is_shrunk_changes_nothing(
    pool: Pool, clock: Clock, tmp_path: Path
) -> None:
    clock.phase = "shrinking"
    report = _checked(pool, tmp_path, SUM, clock)
    assert (report.verdict, report.exit_code, report.ended) == ("divergent", 1, "")
    assert report.reproduce


def test_deadline_before_any_run_is_an_error(
    pool: Pool, clock: Clock, tmp_path: Path
) -> None:
    clock.phase = "running the reference"
    with pytest.raises(CannotCheckError) as caught:
        _checked(pool, tmp_path, MEAN, clock)
    assert caught.value.message == (
        "ended by --deadline-s 600 while running the reference: single process on the "
        "global batch"
    )
    assert not pool.is_in_time


SCRIPT = """
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
torch.manual_seed(0)
x = torch.randn(64, 4)
data = TensorDataset(x, x.sum(1, keepdim=True))
size = 16 // dist.get_world_size()
loader = DataLoader(data, size, sampler=DistributedSampler(data))
model = DistributedDataParallel(nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for inputs, targets in loader:
    optimizer.zero_grad()
    nn.functional.mse_loss(model(inputs), targets, reduction="REDUCTION").backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("reduction", "verdict", "code"),
    [("mean", "not-checked", 3), ("sum", "divergent", 1)],
)
def test_deadline_of_a_script_reports_the_world_sizes_that_were_checked(
    reduction: str, verdict: str, code: int, warm: Pool, clock: Clock, tmp_path: Path
) -> None:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT.replace("REDUCTION", reduction), encoding="utf-8")
    script = target_scripts.parsed([str(path)])
    clock.phase = "recording train.py on 4"
    options = Options(world_sizes=(2, 4), deadline_s=600.0)
    report = scripts.check_script(script, options, progress=clock, outer=warm)
    assert (report.verdict, report.exit_code) == (verdict, code)
    assert report.ended == "ended by --deadline-s 600 at world size 4"
    assert {run.world_size for run in report.runs} == {2}
    assert "world size 4" in [n.what for n in report.not_compared]


def test_earlier_deadline_of_a_pool_stays(pool: Pool) -> None:
    early, late = Deadline(1.0, 1.0), Deadline(9.0, 9.0)
    job = Job(function="builtins:dict", arguments={})
    with pool.bounded(early), pool.bounded(late):
        pool.wait([])  # nothing to wait for
        with pytest.raises(DeadlineError, match=r"^ended by --deadline-s 1$"):
            pool.run(job, SOLO)
    pool.retire_busy()
    assert not pool.is_in_time
