"""Deadlines of jobs, time without a core, and deadlocks seen before the deadline."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any, cast

import pytest

from ddpcheck.ranks.crew import Crew
from ddpcheck.ranks.messages import Job, Outcome
from ddpcheck.ranks.pool import Pool
from ddpcheck.ranks.processes import CpuTime, Starvation
from ddpcheck.ranks.task import LOOKS, Quiet, Task
from ddpcheck.run.session import assemble
from ddpcheck.run.session.session import Session
from ddpcheck.run.spec import FINE_RTOL, RunSpec
from ddpcheck.target.target import TargetRef
from tests.conftest import LOOK_S
from tests.diagnose.head import HEAD

LIMIT_S = 40.0  # what a rank that is not seen would take
FEW = 2  # quiet looks
LATE_S = 0.7
QUIET = CpuTime(ran_s=0.004, waited_s=0.1)
pytestmark = pytest.mark.usefixtures("early_looks")


class _Waiting:
    """Ranks that wait for a core all the time."""

    def pids(self) -> list[int]:
        """Returns none: nobody is asked."""
        return []


@pytest.mark.parametrize(
    ("is_bounded", "deadline", "starved_s"), [(True, 10.0, 2.0), (False, 12.0, 0.0)]
)
def test_limit_that_was_chosen_counts_the_wait_for_cores(
    *,
    is_bounded: bool,
    deadline: float,
    starved_s: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks: Any = lambda *_: CpuTime(waited_s=5.0)  # noqa: E731 (of a method)
    monkeypatch.setattr(Starvation, "look", looks)
    crew = cast("Crew", _Waiting())
    task = Task(crew=crew, deadline=10.0, limit_s=10.0, is_bounded=is_bounded)
    task.started = 1.0
    task.give_back(3.0, 0.0)
    assert (task.deadline, task.starved_s) == (deadline, starved_s)


def test_machine_that_stood_still_moves_every_limit() -> None:
    crew = cast("Crew", _Waiting())
    task = Task(crew=crew, deadline=10.0, limit_s=10.0, is_bounded=True, started=1.0)
    task.give_back(3.0, 1.5)
    assert task.deadline == 11.5


def _deeds(
    pool: Pool, codes: tuple[str, ...], looks: int = FEW
) -> tuple[list[Outcome], float]:
    """Lets each rank do its own; returns what became of them, and the seconds."""
    head = (
        "import os, signal, threading, time, torch; import torch.distributed as dist\n"
    )
    branches = "".join(
        f"if dist.get_rank() == {rank}:\n    {code}\n"
        for rank, code in enumerate(codes)
    )
    job = Job(function="tests.ranks.jobs:deed", arguments={"code": head + branches})
    pool.run(Job(function="tests.ranks.jobs:pid"), len(codes))  # the ranks sit
    started = time.monotonic()
    outcomes = pool.run(job, len(codes), timeout_s=LIMIT_S, quiet_looks=looks)
    return outcomes, time.monotonic() - started


@pytest.mark.parametrize(
    ("codes", "kinds", "looks"),
    [
        (("dist.barrier()", "pass"), ["stuck", "done"], LOOKS),
        (("dist.barrier()", "pass", "dist.barrier()"), ["stuck", "done", "stuck"], FEW),
        (
            ("dist.recv(torch.ones(1), 1)", "dist.recv(torch.ones(1), 0)"),
            ["stuck", "stuck"],
            FEW,
        ),
    ],
    ids=["ended", "one-of-three-ended", "each-waits-for-the-other"],
)
def test_ranks_that_wait_for_each_other_are_seen(
    pool: Pool, codes: tuple[str, ...], kinds: list[str], looks: int
) -> None:
    outcomes, seconds = _deeds(pool, codes, looks)
    assert [o.kind for o in outcomes] == kinds
    assert looks * LOOK_S <= seconds < LIMIT_S / 2
    for outcome in outcomes:
        is_told = "distributed_c10d.py" in outcome.stack
        assert is_told == (outcome.kind == "stuck")
        assert outcome.stack.count("in rank_main") == is_told


def test_rank_that_is_awake_and_gets_no_core_may_go_on(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = iter([True] * 2)
    monkeypatch.setattr(
        "ddpcheck.ranks.processes.is_any_awake", lambda _: next(looks, False)
    )
    outcomes, seconds = _deeds(pool, ("dist.barrier()", "pass"))
    assert [o.kind for o in outcomes] == ["stuck", "done"]
    assert next(looks, None) is None
    assert seconds >= (FEW + 2) * LOOK_S


SLEEP = f"time.sleep({LATE_S})"
LATE = f"threading.Thread(target=lambda: ({SLEEP}, dist.send(torch.ones(1), 0)))"


@pytest.mark.parametrize(
    "codes",
    [
        ("dist.barrier()", f"{SLEEP}; dist.barrier()"),
        ("pass", SLEEP),
        (
            "dist.recv(torch.ones(1), 1); dist.barrier()",
            f"{LATE}.start(); dist.barrier()",
        ),
        (
            "dist.barrier()",
            "signal.signal(signal.SIGUSR1, lambda *_: os._exit(1)); "
            f"{SLEEP}; dist.barrier()",
        ),
    ],
    ids=[
        "comes-late",
        "ends-late",
        "a-thread-sends",
        "handler-of-a-scheduler's-signal",
    ],
)
def test_what_else_a_rank_does_is_left_to_it(
    pool: Pool, codes: tuple[str, ...]
) -> None:
    outcomes, seconds = _deeds(pool, codes)
    assert [o.kind for o in outcomes] == ["done", "done"]
    assert seconds > LATE_S > FEW * LOOK_S


FAIL_S = 3.0  # a busy machine looks late
FAIL = f"time.sleep({FAIL_S}); raise ValueError"


@pytest.mark.parametrize(
    ("other", "kind", "least_s", "most_s"),
    [
        ("dist.barrier()", "stopped", 0.0, FAIL_S - 0.1),
        # As long again as it took until the first failed.
        (f"time.sleep({FAIL_S} + 0.6); raise OSError", "raised", 0.6, LIMIT_S),
    ],
    ids=["waits", "goes-on"],
)
def test_ranks_that_wait_for_one_that_failed_are_stopped_early(
    pool: Pool, other: str, kind: str, least_s: float, most_s: float
) -> None:
    outcomes, seconds = _deeds(pool, (FAIL, other), LOOKS)
    assert [o.kind for o in outcomes] == ["raised", kind]
    assert FAIL_S + least_s <= seconds < FAIL_S + most_s
    assert ("barrier" in outcomes[1].stack) == (kind == "stopped")


def test_wait_with_a_deadline_of_its_own_may_end(pool: Pool, tmp_path: Path) -> None:
    source = """
from datetime import timedelta
model = nn.Linear(4, 1)
batch = torch.randn(8, 4), torch.zeros(8)
def train_step(model, optimizer, batch):
    if world() > 1 and not seen:
        seen.append(dist.new_group(timeout=timedelta(seconds=0.7)))
        if rank() == 0:
            try:
                dist.all_reduce(torch.ones(1), group=seen[0])
            except RuntimeError:
                pass
    optimizer.zero_grad()
    model(batch[0]).square().mean().backward()
    optimizer.step()
seen = []
"""
    path = tmp_path / "mine.py"
    path.write_text(HEAD + source, encoding="utf-8")
    session = Session(pool, TargetRef(path=str(path)))
    session.quiet_looks = FEW
    (outcome,) = session.run([RunSpec(mode="ddp", world_size=2)])
    assert assemble.to_run(outcome, FINE_RTOL).verdict == "equivalent"
    assert outcome.seconds > LATE_S


def test_stack_of_a_death_is_without_those_that_were_asked_for(pool: Pool) -> None:
    dies = f"{SLEEP}; os.kill(os.getpid(), signal.SIGSEGV)"
    (_, dead), _ = _deeds(pool, ("dist.barrier()", dies))
    assert (dead.kind, dead.exit_code) == ("died", -11)
    assert dead.stack.startswith("Fatal Python error: Segmentation fault\n")
    assert dead.stack.count("in rank_main") == 1


class Waiting:
    """A crew that has been asked some times, and says whether it waits for itself."""

    def __init__(self, *answers: bool) -> None:
        self.answers, self.asked_at = list(answers), cast("list[int]", [])

    def looks(self, quiet: Quiet, *turns: CpuTime | None) -> list[bool]:
        """Returns the result of each look."""
        results = []
        for number, look in enumerate(turns, start=1):
            self.number = number
            quiet.note(look)
            results.append(quiet.is_deadlocked(cast("Crew", self)))
        return results

    def is_awake(self) -> bool:
        """Sleeps."""
        return False

    def waits_for_itself(self) -> bool:
        """Answers, and notes when it was asked."""
        self.asked_at.append(self.number)
        return self.answers.pop(0)


def test_crew_is_asked_at_the_sixth_quiet_look_and_ever_more_rarely() -> None:
    crew = Waiting(False, False, True)
    results = crew.looks(Quiet(), *[QUIET] * 24)
    assert crew.asked_at == [6, 12, 24]
    assert results == [False] * 23 + [True]


@pytest.mark.parametrize(
    "other",
    [CpuTime(ran_s=0.005), CpuTime(waited_s=0.2), None],
    ids=["ran", "starved", "unknown"],
)
def test_looks_that_are_not_quiet_begin_the_count_anew(other: CpuTime | None) -> None:
    crew = Waiting(False, True)
    results = crew.looks(Quiet(), *[QUIET] * 7, other, *[QUIET] * 6)
    assert crew.asked_at == [6, 14]
    assert results == [False] * 13 + [True]


def test_what_threads_had_is_counted_from_look_to_look() -> None:
    watched, own = Starvation(), [os.getpid()]
    assert watched.look(own) == CpuTime()
    ended = time.thread_time() + 0.05
    while time.thread_time() < ended:
        pass
    turns: Any = watched.look(own)
    assert 0.05 <= turns.ran_s < 5
    assert watched.look([]) is None
