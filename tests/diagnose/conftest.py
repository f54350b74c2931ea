"""Deadlines for ranks that will never answer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from ddpcheck.ranks.messages import Job
from ddpcheck.ranks.pool import Pool
from ddpcheck.ranks.task import Task


@pytest.fixture
def short(pool: Pool) -> Iterator[Pool]:
    """The pool with a deadline that fits a rank that will never answer."""
    usual, pool.timeout_s = pool.timeout_s, 0.5
    yield pool
    pool.timeout_s = usual


@pytest.fixture(autouse=True)
def _early_question(
    early_looks: None,  # noqa: ARG001
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ranks that wait for each other are asked after 0.4 s; see ranks/task.py."""
    monkeypatch.setattr("ddpcheck.run.session.session.LOOKS", 2)


@pytest.fixture
def jobs(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the jobs that the pool is given, in order."""
    found: list[str] = []
    submit = pool.submit

    def note(job: Job, *args: Any, **kwargs: Any) -> Task:
        found.append(job.function)
        return submit(job, *args, **kwargs)

    monkeypatch.setattr(pool, "submit", note)
    return found
