"""Writes to gradients before they are complete: clipping postponed, writes undone."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad
from torch.optim.optimizer import register_optimizer_step_pre_hook

from ddpcheck.run import private
from ddpcheck.run.intervention import Switch
from ddpcheck.run.interventions.acts import Acts
from ddpcheck.run.interventions.gradients import backwards
from ddpcheck.run.model import contents
from ddpcheck.run.observe.patches import SCALES
from ddpcheck.run.process.modes import FunctionMode
from ddpcheck.run.process.replacing import replaced


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

    with (
        replaced(clip_grad, **{SCALES: later}),
        register_optimizer_step_pre_hook(clip),
    ):
        yield


@contextlib.contextmanager
def kept_sums(model: nn.Module) -> Iterator[None]:
    """Undoes writes to gradients between two backwards of an update.

    Writes after the last one stay, as do gradients that were set to None.
    """
    left: dict[nn.Parameter, tuple[Tensor, Tensor, int]] = {}

    def restore() -> None:
        for grad, value, version in left.values():
            if private.version(grad) != version and bool(grad.any()):
                grad.copy_(value)

    @torch.no_grad()
    def run(backward: Callable[..., None], *args: Any, **kwargs: Any) -> None:
        restore()
        with torch.enable_grad():
            backward(*args, **kwargs)
        for parameter in contents.parameters(model):
            if (grad := parameter.grad) is not None:
                left[parameter] = grad, grad.clone(), private.version(grad)

    with (
        register_optimizer_step_pre_hook(lambda *_: left.clear()),
        backwards.outermost(run),
    ):
        yield


@contextlib.contextmanager
def as_left(model: nn.Module, acts: Acts) -> Iterator[None]:
    """Undoes writes to gradients between backward and update; `acts` notes these."""
    left: dict[nn.Parameter, Tensor] = {}
    writes = _WritesNoted(left, acts)

    def run(backward: Callable[..., None], *args: Any, **kwargs: Any) -> None:
        writes.is_on = False
        backward(*args, **kwargs)
        grads = ((p, p.grad) for p in contents.parameters(model))
        left.update({p: grad.clone() for p, grad in grads if grad is not None})
        writes.is_on = True

    @torch.no_grad()
    def restore(*_: Any) -> None:
        writes.is_on = False
        for parameter, value in left.items():
            if parameter.grad is not None:
                parameter.grad.copy_(value)
        left.clear()

    with (
        register_optimizer_step_pre_hook(restore),
        backwards.outermost(run),
        writes,
    ):
        yield


class _WritesNoted(FunctionMode):
    """Notes the lines that write to gradients, from a backward to the update."""

    def __init__(self, left: dict[nn.Parameter, Tensor], acts: Acts) -> None:
        super().__init__()
        self.is_on = False
        self._left, self._acts = left, acts

    def called(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Calls the function."""
        before = self._state() if self.is_on else None
        result = func(*args, **kwargs)
        if before is not None and self._state() != before:
            self._acts.note(Switch.GRADIENTS_AS_LEFT)
        return result

    def _state(self) -> list[tuple[int, int]]:
        """Returns which gradients there are, and how often each was written."""
        with private.no_torch_function():
            grads = [p.grad for p in self._left]
            return [(id(g), private.version(g)) for g in grads if g is not None]
