"""The memory of a target's tensors, and the number of threads for its size."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

import torch
from torch import Tensor, nn

from ddpcheck.ranks import budget
from ddpcheck.run.facts import LARGE, Sizes
from ddpcheck.run.model import contents


def of(model: nn.Module, optimizer: Any, steps: int) -> Sizes:
    """Returns the bytes of a model's tensors; `recorded`: of a run's records."""
    parameters = sum(map(_size, contents.parameters(model)))
    gradients = sum(_size(p) for p in contents.parameters(model) if p.requires_grad)
    buffers = sum(map(_size, contents.buffers(model)))
    return Sizes(
        parameters=parameters + buffers,
        gradients=gradients,
        optimizer=gradients * _copies(optimizer),
        recorded=(steps + 1) * (parameters + buffers) + steps * gradients,
    )


def use_cores(model: nn.Module) -> None:
    """Sets the number of threads of a process that runs alone."""
    count = threads(sum(map(_size, contents.tensors(model))))
    if count > 1:
        torch.set_num_threads(count)


def threads(size: int) -> int:
    """Returns the number of threads for a model of this size in bytes.

    Small models train faster with one. Ranks use one each, as they share the cores.
    """
    if size < LARGE:
        return 1
    sharing = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    return max(1, budget.cores() // sharing)


def with_place(sizes: Sizes, in_memory: bool) -> Sizes:  # noqa: FBT001
    """Returns the sizes, without the records if these are written to disk."""
    return sizes if in_memory else dataclasses.replace(sizes, recorded=0)


def _copies(optimizer: Any) -> int:
    """Returns how many tensors of a parameter's size an optimizer keeps for each.

    Two by default, as for Adam; one for SGD with momentum.
    """
    groups = getattr(optimizer, "param_groups", [{}])
    if type(optimizer).__name__ == "SGD":
        return 1 if any(group.get("momentum") for group in groups) else 0
    return 2


def _size(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()
