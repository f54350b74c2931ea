"""Clipping too early: the interventions that put it last."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad
from torch.optim.optimizer import register_optimizer_step_pre_hook

from ddpcheck.run import private
from ddpcheck.run.watch.clipping import SCALES


@contextlib.contextmanager
def deferred() -> Iterator[None]:
    """Clips once, when the optimizer steps, whenever the step asked for it."""
    scale = getattr(clip_grad, SCALES, None)
    if scale is None:
        yield
        return
    asked: list[tuple[list[Tensor], float]] = []

    def later(
        parameters: Any, max_norm: float, total_norm: Tensor, *_: Any, **__: Any
    ) -> None:
        del total_norm
        single = isinstance(parameters, Tensor)
        asked[:] = [([parameters] if single else list(parameters), float(max_norm))]

    def clip(*_: Any) -> None:
        for parameters, max_norm in asked:
            grads = [p.grad for p in parameters if p.grad is not None]
            scale(parameters, max_norm, torch.nn.utils.get_total_norm(grads))
        asked.clear()

    setattr(clip_grad, SCALES, later)
    hook = register_optimizer_step_pre_hook(clip)
    try:
        yield
    finally:
        hook.remove()
        setattr(clip_grad, SCALES, scale)


@contextlib.contextmanager
def without_tensor_hooks(model: nn.Module) -> Iterator[None]:
    """Takes the tensor hooks off all parameters, and puts them back.

    Hooks that a training step registers meanwhile never run.
    """
    register = Tensor.register_hook
    parameters = {id(p) for p in model.parameters()}

    def ignoring(self: Tensor, hook: Any) -> Any:
        handle = register(self, hook)  # type: ignore[no-untyped-call]
        if id(self) in parameters:
            handle.remove()
        return handle

    kept = [
        (p, private.tensor_hooks(p))
        for p in model.parameters()
        if private.tensor_hooks(p)
    ]
    for parameter, _ in kept:
        private.put_tensor_hooks(parameter, None)
    Tensor.register_hook = ignoring  # type: ignore[method-assign]
    try:
        yield
    finally:
        Tensor.register_hook = register  # type: ignore[method-assign]
        for parameter, hooks in kept:
            private.put_tensor_hooks(parameter, hooks)
