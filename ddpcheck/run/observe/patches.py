"""Patches of torch that observe one feature each: clipping, DDP's sync flag, AMP, ...

Clipping: torch.nn.utils.clip_grad_norm_ calls `_clip_grads_with_norm_` of its module
(torch 2.6 and later) to scale the gradients. Patching that function also covers `from
torch.nn.utils import clip_grad_norm_`. Without it clipping is not observed.

The sync flag: DDP's forward reads `require_backward_grad_sync`, which no_sync() and
sometimes user code set. A property replaces it within the context.

Parts: the scheduler, the sampler and the parts of AMP that a step uses.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad
from torch.optim import lr_scheduler
from torch.utils.data.distributed import DistributedSampler

from ddpcheck.run import private
from ddpcheck.run.model import contents
from ddpcheck.run.process import callers
from ddpcheck.run.process.replacing import all_replaced, replaced

SCALES = "_clip_grads_with_norm_"


@contextlib.contextmanager
def clips_noticed(on_clip: Callable[[], None]) -> Iterator[None]:
    """Calls `on_clip` whenever gradients are clipped by norm."""
    scale = getattr(clip_grad, SCALES, None)
    if scale is None:
        yield
        return

    def noting(*args: Any, **kwargs: Any) -> Any:
        on_clip()
        return scale(*args, **kwargs)

    with replaced(clip_grad, **{SCALES: noting}):
        yield


def hooked_parameters(model: nn.Module, registered: set[int]) -> list[str]:
    """Returns the parameters with tensor hooks, which see the local gradient.

    `registered` are the ids of tensors with hooks, which may have been removed.
    """
    return [
        name
        for name, parameter in contents.named_parameters(model)
        if id(parameter) in registered or not hooks_are_ours(parameter)
    ]


def hooks_are_ours(parameter: nn.Parameter) -> bool:
    """Returns whether its tensor hooks, if any, belong to an intervention."""
    hooks = (private.tensor_hooks(parameter) or {}).values()
    modules = [str(getattr(hook, "__module__", "")) for hook in hooks]
    return all(module.startswith("ddpcheck.run.") for module in modules)


def hooks_on_the_way(model: nn.Module, registered: int) -> bool:
    """Returns whether user code may change gradients before they reach parameters.

    By a hook on another tensor (`registered` of them), by a hook on a module, or by an
    autograd function.
    """
    modules = any(map(private.backward_hooks, contents.modules(model)))
    return bool(registered) or modules or bool(own_functions())


def own_functions() -> list[type[torch.autograd.Function]]:
    """Returns the autograd functions that user code defines."""
    known = torch.autograd.Function.__subclasses__()
    return [f for f in known if not f.__module__.startswith(("torch.", "ddpcheck."))]


_NAME = "require_backward_grad_sync"
# The property reads another attribute: with one that reads its own name, torch.compile
# of torch 2.9 recurses endlessly.
_READ = "ddpcheck_backward_grad_sync"


@contextlib.contextmanager
def sync_flag_watched(note: Callable[[str], None]) -> Iterator[None]:
    """Calls `note` at every change of the flag: "[" when unset, "]" when set."""

    def change(ddp: Any, value: Any) -> None:
        if bool(vars(ddp).get(_NAME, True)) != bool(value):
            note("]" if value else "[")
        vars(ddp)[_NAME] = vars(ddp)[_READ] = value

    # A form that torch.compile of every supported torch can trace.
    flag = property(lambda ddp: ddp.ddpcheck_backward_grad_sync, change)
    with replaced(DistributedDataParallel, **{_READ: True, _NAME: flag}):
        yield


def sync_flag_held(*, is_set: bool) -> contextlib.AbstractContextManager[None]:
    """Fixes the flag: every backward is reduced, even in no_sync(), or none is."""

    def keep(ddp: Any, value: Any) -> None:
        vars(ddp)[_NAME] = value

    flag = property(lambda _: is_set, keep)
    return replaced(DistributedDataParallel, **{_NAME: flag})


AUTOCAST = "AMP (autocast)"
SCALER = "AMP (GradScaler)"
SCHEDULER = "scheduler"
SAMPLER = "sampler"
# torch's checkpoint re-enters a saved autocast state, ddpcheck that of its dtype.
_NOT_USERS = ("ddpcheck.", "torch.utils.")


def parts_noticed(parts: set[str]) -> contextlib.AbstractContextManager[None]:
    """Adds to `parts` the parts that user code uses within the context."""
    owners = [(cls, "step", SCHEDULER) for cls in _schedulers()]
    owners += [
        (torch.autocast, "__enter__", AUTOCAST),
        (torch.amp.GradScaler, "step", SCALER),
        (DistributedSampler, "__init__", SAMPLER),
    ]
    return all_replaced(
        {
            (owner, name): _noting_part(vars(owner)[name], part, parts)
            for owner, name, part in owners
        }
    )


def _schedulers() -> list[Any]:
    """Returns the scheduler classes that define `step`."""
    found = [cls for cls in vars(lr_scheduler).values() if inspect.isclass(cls)]
    return [
        cls
        for cls in dict.fromkeys(found)
        if issubclass(cls, lr_scheduler.LRScheduler) and "step" in vars(cls)
    ]


def _noting_part(function: Any, part: str, parts: set[str]) -> Any:
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
        return is_on and not caller.startswith(_NOT_USERS)
    return True
