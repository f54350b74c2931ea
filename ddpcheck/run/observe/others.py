"""Optimizers that a training step of one's own has besides the one it is given.

A loss with weights of its own (class centres, the weights of tasks, a temperature) may
be trained by an optimizer in a global of the file, or at the optimizer that is given.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor
from torch.optim import Optimizer


def optimizers(train_step: Callable[..., Any] | None, given: Any) -> dict[str, Any]:
    """Returns the other optimizers within sight of a training step, by their names.

    Args:
        train_step: of the target; None has no others.
        given: the optimizer that it is called with.
    """
    if train_step is None:
        return {}
    named = dict(getattr(train_step, "__globals__", {}))
    named |= {
        f"optimizer.{name}": v for name, v in getattr(given, "__dict__", {}).items()
    }
    return {
        name: value
        for name, value in named.items()
        if isinstance(value, Optimizer) and value is not given
    }


def trained(named: Mapping[str, Any]) -> dict[str, Tensor]:
    """Returns what optimizers train: "name[position]" -> tensor."""
    return {
        f"{name}[{position}]": tensor
        for name, optimizer in named.items()
        for position, tensor in enumerate(_held(optimizer))
    }


def _held(optimizer: Any) -> list[Tensor]:
    groups = getattr(optimizer, "param_groups", [])
    return [tensor for group in groups for tensor in group["params"]]
