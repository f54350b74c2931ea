"""Deadlines for ranks that will never answer."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ddpcheck.ranks.pool import Pool


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
def no_script(monkeypatch: pytest.MonkeyPatch) -> None:
    """No search for the smallest run that reproduce.py makes: a sixth of the time.

    Tests of the script are test_reproduce's; the examples of all pages have theirs.
    """
    monkeypatch.setattr("ddpcheck.diagnose.shrink.smallest", lambda _, it, *__: it)
