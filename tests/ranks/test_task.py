"""How long a job may take, where its ranks wait for cores."""

from __future__ import annotations

from typing import Any, cast

import pytest

from ddpcheck.ranks.crew import Crew
from ddpcheck.ranks.starvation import Starvation, Turns
from ddpcheck.ranks.task import Task


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
    looks: Any = lambda *_: Turns(waited_s=5.0)  # noqa: E731 (of a method)
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
