"""Weights that are written between the updates, and what puts them right again."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ddpcheck import compare
from ddpcheck.run.names import strip


class Rewrites:
    """Digests of the weights at the beginning of each step and at its first forward.

    A checkpoint that a training step loads, or a reset, shows between the two. What
    forward itself writes comes later.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._begun: tuple[float, ...] | None = None
        # (at the beginning, at the first forward) by step
        self.found: dict[int, tuple[tuple[float, ...], tuple[float, ...]]] = {}
        self._step = 0
        self._hook = model.register_forward_pre_hook(self._enter)

    def remove(self) -> None:
        """Takes the hook off the model."""
        self._hook.remove()

    def begin(self, step: int) -> None:
        """Notes the weights before a step."""
        self._step, self._begun = step, self._digest()

    def _enter(self, *_: object) -> None:
        if self._begun is not None:
            self.found[self._step] = self._begun, self._digest()
            self._begun = None

    def _digest(self) -> tuple[float, ...]:
        return compare.digest(dict(self._model.named_parameters()))


def broadcast(model: nn.Module, initial: Mapping[str, Tensor]) -> None:
    """Gives all ranks the weights and buffers of `initial`, rank 0's where it has none.

    By name: ranks may hold the same parameters in different orders.
    """
    named = {
        strip(n): t for n, t in [*model.named_parameters(), *model.named_buffers()]
    }
    with torch.no_grad():
        for name in sorted(named):
            known = initial.get(name)
            if known is not None and known.shape == named[name].shape:
                named[name].data.copy_(known)
            dist.broadcast(named[name].data, 0)


@contextlib.contextmanager
def broadcast_before(model: nn.Module) -> Iterator[None]:
    """Gives all ranks rank 0's weights and buffers before every forward that trains."""

    def enter(*_: object) -> None:
        if torch.is_grad_enabled():
            broadcast(model, {})

    hook = model.register_forward_pre_hook(enter)
    try:
        yield
    finally:
        hook.remove()
