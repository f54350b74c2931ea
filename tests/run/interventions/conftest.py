"""A group of three ranks for interventions on collectives, without one."""

from __future__ import annotations

from typing import Any

import pytest
import torch.distributed as dist
from torch import Tensor


@pytest.fixture
def three_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stands for a group of three ranks that all hold what this process holds."""

    def all_reduce(tensor: Tensor, op: Any = dist.ReduceOp.SUM, **_: Any) -> None:
        if op == dist.ReduceOp.SUM:
            tensor.mul_(3)

    monkeypatch.setattr(dist, "get_world_size", lambda: 3)
    monkeypatch.setattr(dist, "all_reduce", all_reduce)
