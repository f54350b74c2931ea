"""Which parts of a training loop a step has, beyond model, loss and optimizer."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Iterator
from typing import Any

import torch
from torch.optim import lr_scheduler
from torch.utils.data.distributed import DistributedSampler

from ddpcheck.run.process import callers

AUTOCAST = "AMP (autocast)"
SCALER = "AMP (GradScaler)"
SCHEDULER = "scheduler"
SAMPLER = "sampler"
# torch's own checkpoints enter a saved state, ddpcheck that of the dtype.
_OTHERS = ("ddpcheck.", "torch.utils.")


@contextlib.contextmanager
def noticed(parts: set[str]) -> Iterator[None]:
    """Adds to `parts` what user code has that is in use, until left."""
    owners = [(cls, "step", SCHEDULER) for cls in _schedulers()]
    owners += [
        (torch.autocast, "__enter__", AUTOCAST),
        (torch.amp.GradScaler, "step", SCALER),
        (DistributedSampler, "__init__", SAMPLER),
    ]
    before = [(owner, name, vars(owner)[name]) for owner, name, _ in owners]
    for owner, name, part in owners:
        setattr(owner, name, _noting(vars(owner)[name], part, parts))
    try:
        yield
    finally:
        for owner, name, function in before:
            setattr(owner, name, function)


def _schedulers() -> list[Any]:
    """Returns the classes of schedulers that have a `step` of their own."""
    found = [cls for cls in vars(lr_scheduler).values() if inspect.isclass(cls)]
    return [
        cls
        for cls in dict.fromkeys(found)
        if issubclass(cls, lr_scheduler.LRScheduler) and "step" in vars(cls)
    ]


def _noting(function: Any, part: str, parts: set[str]) -> Any:
    @functools.wraps(function)
    def note(self: Any, *args: Any, **kwargs: Any) -> Any:
        caller = callers.module_of(callers.frame(1))
        result = function(self, *args, **kwargs)
        if part not in parts and _is_in_use(self, part, caller):
            parts.add(part)
        return result

    return note


def _is_in_use(owner: Any, part: str, caller: str) -> bool:
    if part == SCHEDULER:  # each steps once when it is built
        return not caller.startswith("torch.optim.")
    if part == SCALER:
        return bool(owner.is_enabled())
    if part == AUTOCAST:
        is_on = any(map(torch.is_autocast_enabled, ("cpu", "cuda")))
        return is_on and not caller.startswith(_OTHERS)
    return True
