"""How large the tensors of a target are, and where what is recorded of them goes."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from ddpcheck import budget, space
from ddpcheck.memory import Sizes
from ddpcheck.ranks import folder as folders

# A record larger than this goes to a disk, where there is room: the kernel can take
# back what it caches of a file, but nothing that lies in shared memory. One that shared
# memory has no room for goes there, too.
_LARGE = 1 << 30
_THREADED = 64 << 20


def of(model: nn.Module, optimizer: Any, steps: int) -> Sizes:
    """Returns the bytes of a model's tensors; `recorded` of all that a run records."""
    parameters = sum(map(_size, model.parameters()))
    gradients = sum(_size(p) for p in model.parameters() if p.requires_grad)
    buffers = sum(map(_size, model.buffers()))
    return Sizes(
        parameters=parameters + buffers,
        gradients=gradients,
        optimizer=gradients * _copies(optimizer),
        recorded=(steps + 1) * (parameters + buffers) + steps * gradients,
    )


def threads(sizes: Sizes) -> int:
    """Returns how many threads compute one process's part of a run that is alone.

    Small models are done sooner with one. Ranks have one each: they share the cores.
    """
    if sizes.parameters < _THREADED:
        return 1
    sharing = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    return max(1, budget.cores() // sharing)


def place(folder: Path, size: int) -> Path:
    """Returns the folder for a record: the session's own, or its folder on a disk."""
    if size <= _LARGE and space.has_room(folder, size):
        return folder
    disk = folders.on_disk(folder)
    try:
        disk.mkdir(mode=0o700, exist_ok=True)
        return disk if space.has_room(disk, size) else folder
    except OSError:
        return folder


def with_place(sizes: Sizes, in_memory: bool) -> Sizes:  # noqa: FBT001
    """Returns the sizes without what is recorded, where that goes to a disk."""
    return sizes if in_memory else dataclasses.replace(sizes, recorded=0)


def _copies(optimizer: Any) -> int:
    """Returns how many tensors of a parameter's size an optimizer keeps for each.

    Two, as Adam, where nothing says otherwise; momentum is one.
    """
    groups = getattr(optimizer, "param_groups", [{}])
    if type(optimizer).__name__ == "SGD":
        return 1 if any(group.get("momentum") for group in groups) else 0
    return 2


def _size(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()
