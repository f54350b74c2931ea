"""What the target did with torch.distributed and DDP during a run.

Patches of classes and module functions, inside a rank and for the length of one run.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

_ASKED = ("is_initialized", "get_world_size", "get_rank", "is_available")
_COLLECTIVES = (
    "all_reduce",
    "all_gather",
    "all_gather_into_tensor",
    "all_gather_object",
    "broadcast",
    "broadcast_object_list",
    "reduce",
    "gather",
    "scatter",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "all_to_all",
    "all_to_all_single",
    "barrier",
)


@dataclass(slots=True)
class Wrapped:
    """What one DDP object saw when it was built."""

    module: DistributedDataParallel
    parameters: list[tuple[int, bool, torch.dtype, torch.Tensor]]
    forwards: int = 0


@dataclass(slots=True)
class Observed:
    """Facts of one run."""

    asks_distributed: bool = False
    collectives: list[str] = field(default_factory=list)
    wrapped: list[Wrapped] = field(default_factory=list)
    events: list[str] = field(default_factory=list)  # per step: F, B, G, S


@contextlib.contextmanager
def observing() -> Iterator[Observed]:
    """Records into the yielded object until left."""
    seen = Observed()
    with contextlib.ExitStack() as stack:
        for name in _ASKED:
            stack.enter_context(_patched(dist, name, _asking(seen, getattr(dist, name))))
        for name in _COLLECTIVES:
            if hasattr(dist, name):
                function = getattr(dist, name)
                stack.enter_context(_patched(dist, name, _noting(seen, name, function)))
        cls = DistributedDataParallel
        stack.enter_context(_patched(cls, "__init__", _building(seen, cls.__init__)))
        stack.enter_context(_patched(cls, "forward", _forwarding(seen, cls.forward)))
        backward, grad = torch.autograd.backward, torch.autograd.grad
        stack.enter_context(
            _patched(torch.autograd, "backward", _event(seen, "B", backward))
        )
        stack.enter_context(_patched(torch.autograd, "grad", _event(seen, "G", grad)))
        yield seen


@contextlib.contextmanager
def _patched(owner: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def _is_users(depth: int = 2) -> bool:
    """Returns whether the caller is neither torch nor ddpcheck."""
    name = str(sys._getframe(depth).f_globals.get("__name__", ""))  # noqa: SLF001
    return not name.startswith(("torch.", "ddpcheck."))


def _asking(seen: Observed, function: Any) -> Any:
    def ask(*args: Any, **kwargs: Any) -> Any:
        if _is_users():
            seen.asks_distributed = True
        return function(*args, **kwargs)

    return ask


def _noting(seen: Observed, name: str, function: Any) -> Any:
    def note(*args: Any, **kwargs: Any) -> Any:
        seen.asks_distributed = True
        seen.collectives.append(name)
        return function(*args, **kwargs)

    return note


def _building(seen: Observed, function: Any) -> Any:
    def build(self: Any, module: nn.Module, *args: Any, **kwargs: Any) -> None:
        before = [(id(p), p.requires_grad, p.dtype, p) for p in module.parameters()]
        function(self, module, *args, **kwargs)
        seen.wrapped.append(Wrapped(module=self, parameters=before))  # type: ignore[arg-type]

    return build


def _forwarding(seen: Observed, function: Any) -> Any:
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        seen.events.append("F")
        for wrapped in seen.wrapped:
            if wrapped.module is self:
                wrapped.forwards += 1
        return function(self, *args, **kwargs)

    return forward


def _event(seen: Observed, letter: str, function: Any) -> Any:
    def record(*args: Any, **kwargs: Any) -> Any:
        seen.events.append(letter)
        return function(*args, **kwargs)

    return record
