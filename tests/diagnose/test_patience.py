"""How long runs may take that vary one which failed."""

from __future__ import annotations

from typing import Any, cast

import pytest

from ddpcheck.diagnose import engine
from ddpcheck.ranks.messages import Outcome
from ddpcheck.ranks.pool import Pool
from ddpcheck.run.session.session import Session
from ddpcheck.run.spec import ReferenceResult, RunOutcome, RunSpec
from ddpcheck.target.target import TargetRef


class Waiting:
    """A pool of which only the deadline matters."""

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s


def _session(
    timeout_s: float, kind: Any, reference_s: float, *, is_bounded: bool = False
) -> Session:
    outcome = RunOutcome(
        spec=RunSpec(mode="ddp", world_size=2),
        reference=ReferenceResult(seconds=reference_s),
        ranks=[Outcome(rank=0, kind=kind), Outcome(rank=1, kind="done")],
    )
    session = Session(cast("Pool", Waiting(timeout_s)), TargetRef(path="mine.py"))
    session.is_bounded = is_bounded
    engine.limit_patience(session, [outcome])
    return session


@pytest.mark.parametrize(
    ("timeout_s", "reference_s", "expected_s"),
    [(60.0, 0.1, 7.0), (60.0, 2.8, 60.0), (60.0, 5.0, 100.0), (4.0, 0.1, 4.0)],
)
def test_less_time_is_left_than_the_first_runs_had(
    timeout_s: float, reference_s: float, expected_s: float
) -> None:
    assert _session(timeout_s, "done", reference_s).timeout_s == expected_s


def test_limit_that_was_chosen_bounds_the_trials_of_a_slow_target() -> None:
    session = _session(60.0, "done", 5.0, is_bounded=True)
    assert session.timeout_s == 60.0


@pytest.mark.parametrize(("kind", "looks"), [("stuck", 2), ("hung", 6), ("died", 6)])
def test_ranks_are_asked_early_after_some_waited_for_each_other(
    kind: str, looks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ddpcheck.run.session.session.LOOKS", 6)
    assert _session(60.0, kind, 0.1).quiet_looks == looks
