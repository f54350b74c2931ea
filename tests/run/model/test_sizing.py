"""How a run is done, by the size of its model."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from ddpcheck.ranks import budget
from ddpcheck.run.model import sizing

LARGE = 64 << 20  # bytes


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
    assert sizing.threads(LARGE - 1) == 1


@pytest.mark.parametrize(("numbers", "threads"), [(1 << 21, 1), (1 << 24, 3)])
def test_cores_are_used_for_parameters_and_buffers(
    numbers: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budget, "cores", lambda: 3)
    monkeypatch.delenv("PYTEST_XDIST_WORKER_COUNT", raising=False)
    model = nn.Module()
    model.register_buffer("table", torch.zeros(numbers))
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        sizing.use_cores(model)
        assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
