"""What one process is asked once, and beside the ranks' runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ddpcheck.diagnose.search.probing import References
from ddpcheck.ranks.messages import Job, Outcome
from ddpcheck.ranks.pool import SOLO, Pool
from ddpcheck.ranks.task import Task
from ddpcheck.run.session import assemble
from ddpcheck.run.session.session import Session
from ddpcheck.run.spec import FINE_RTOL, RunSpec
from ddpcheck.target.target import TargetRef
from tests.corpus import programs
from tests.diagnose.head import HEAD
from tests.diagnose.test_rules import checked

pytestmark = [pytest.mark.corpus, pytest.mark.usefixtures("causes_alone")]

RECORD = "ddpcheck.diagnose.probes.reference:record"
JUDGE = "ddpcheck.diagnose.probes.rank:judge"
PID = Job(function="tests.ranks.jobs:pid")
SUM = """
model = nn.Linear(4, 3)
batch = torch.randn(8, 4), torch.randn(8, 3)
def loss(output, target):
    return (output - target).square().sum()
"""


@pytest.fixture
def submitted(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the jobs that the pool is given, in order."""
    found: list[str] = []
    submit = pool.submit

    def note(job: Job, *args: Any, **kwargs: Any) -> Task:
        found.append(job.function)
        return submit(job, *args, **kwargs)

    monkeypatch.setattr(pool, "submit", note)
    return found


def test_search_for_two_causes_asks_one_process_once(
    pool: Pool, submitted: list[str], tmp_path: Path
) -> None:
    source = programs.source("collective/lost-gather-beside-an-overlap")
    report = checked(pool, tmp_path, source)
    assert (len(report.findings), report.findings[0].slug) == (
        2,
        "collective/no-autograd",
    )
    assert submitted.count(JUDGE) > 1
    assert submitted.count(RECORD) == 1


@pytest.mark.parametrize(("killed", "size"), [(RECORD, SOLO), (JUDGE, 2)])
def test_probe_that_was_killed_looks_once_more(
    killed: str,
    size: int,
    pool: Pool,
    submitted: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wait = pool.wait

    def killed_once(tasks: list[Task]) -> None:
        wait(tasks)
        is_first = submitted.count(killed) == 1
        if is_first and tasks[0].crew.world_size == size:
            tasks[0].outcomes[0] = Outcome(rank=0, kind="died", exit_code=-9)

    monkeypatch.setattr(pool, "wait", killed_once)
    (finding,) = checked(pool, tmp_path, HEAD + SUM).findings
    assert finding.slug == "loss/sum-reduction"
    assert submitted.count(killed) == 2


def _divergent(pool: Pool, folder: Path) -> tuple[Session, RunSpec, References, Any]:
    path = folder / "mymodel.py"
    path.write_text(HEAD + SUM, encoding="utf-8")
    session = Session(pool, TargetRef(path=str(path)))
    spec = RunSpec(mode="ddp", world_size=2)
    (outcome,) = session.run([spec])
    run = assemble.to_run(outcome, FINE_RTOL)
    return session, spec, References(session), run


def test_one_process_is_at_work_beside_the_ranks(
    pool: Pool, submitted: list[str], tmp_path: Path
) -> None:
    session, spec, references, run = _divergent(pool, tmp_path)
    submitted.clear()
    with references.ahead(spec, run):
        session.run([spec.but(mode="averaged")])
    assert submitted == [RECORD, "ddpcheck.run.modes.jobs.candidate:candidate"]
    evidence, failed = references.of(spec, run)
    assert (evidence is not None, failed) == (True, "")
    assert references.of(spec, run) == (evidence, "")
    assert len(submitted) == 2


def test_process_at_work_for_nobody_is_replaced(pool: Pool, tmp_path: Path) -> None:
    _, spec, references, run = _divergent(pool, tmp_path)
    (before,) = pool.run(PID, SOLO)
    with pytest.raises(KeyboardInterrupt), references.ahead(spec, run):
        raise KeyboardInterrupt
    (after,) = pool.run(PID, SOLO)
    assert after.value != before.value
    evidence, _ = references.of(spec, run)
    assert evidence is not None


def test_large_model_has_all_cores_to_itself(
    pool: Pool,
    submitted: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    session, spec, references, run = _divergent(pool, tmp_path)
    monkeypatch.setattr("ddpcheck.run.facts.LARGE", 1)
    submitted.clear()
    with references.ahead(spec, run):
        session.run([spec.but(mode="averaged")])
    assert submitted == ["ddpcheck.run.modes.jobs.candidate:candidate"]
