"""How a run is done, by the size of its model."""

from __future__ import annotations

import dataclasses

import pytest

from ddpcheck import budget
from ddpcheck.memory import Sizes
from ddpcheck.run import sizing

LARGE = Sizes(parameters=64 << 20, gradients=0, optimizer=0, recorded=0)


@pytest.mark.parametrize(
    ("cores", "workers", "threads"),
    [(8, None, 8), (1, None, 1), (8, "3", 2), (2, "4", 1)],
)
def test_large_model_has_the_cores_that_no_other_worker_has(
    cores: int, workers: str | None, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budget, "cores", lambda: cores)
    monkeypatch.delenv("PYTEST_XDIST_WORKER_COUNT", raising=False)
    if workers is not None:
        monkeypatch.setenv("PYTEST_XDIST_WORKER_COUNT", workers)
    assert sizing.threads(LARGE) == threads


def test_small_model_has_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "cores", lambda: 8)
    smaller = dataclasses.replace(LARGE, parameters=LARGE.parameters - 1)
    assert sizing.threads(smaller) == 1
