"""Weights written between updates: detected by digests, repaired by broadcasts."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ddpcheck.compare import digests
from ddpcheck.run.facts import Digest
from ddpcheck.run.model import contents
from ddpcheck.run.model.names import shortener


class Rewrites:
    """Digests of the weights before and after user code may write them in a step.

    A loaded checkpoint or a reset changes them between the beginning of the step and
    its first forward. A constraint or revived neurons change them between the
    optimizer's last step and the end. Writes of forward itself are in neither.
    """

    def __init__(self, model: nn.Module, optimizer: Any) -> None:
        self._model = model
        self._begun: Digest | None = None
        self._updated: Digest | None = None
        # (at the beginning, at the first forward) by step
        self.before: dict[int, tuple[Digest, Digest]] = {}
        # (after the optimizer's last step, at the end) by step
        self.after: dict[int, tuple[Digest, Digest]] = {}
        self._step = 0
        nn.Module.register_forward_pre_hook(model, self._enter)
        if hasattr(optimizer, "register_step_post_hook"):
            optimizer.register_step_post_hook(self._update)

    def begin(self, step: int) -> None:
        """Records the weights before a step."""
        self._step, self._begun, self._updated = step, self._digest(), None

    def end(self) -> None:
        """Records the weights after a step."""
        if self._updated is not None:
            self.after[self._step] = self._updated, self._digest()

    def _update(self, *_: object) -> None:
        self._updated = self._digest()

    def _enter(self, *_: object) -> None:
        if self._begun is not None:
            self.before[self._step] = self._begun, self._digest()
            self._begun = None

    def _digest(self) -> Digest:
        named = contents.named_parameters(self._model)
        # Untrained parameters, as of a teacher, are written as part of the method.
        return digests.digest({n: p for n, p in named if p.requires_grad})


def broadcast(model: nn.Module, initial: Mapping[str, Tensor]) -> None:
    """Sets weights and buffers of all ranks to those of `initial`, else of rank 0.

    By name: ranks may hold the same parameters in different orders.
    """
    short = shortener(model)
    named = {short(n): t for n, t in contents.named_tensors(model)}
    with torch.no_grad():
        for name in sorted(named):
            known = initial.get(name)
            if known is not None and known.shape == named[name].shape:
                named[name].data.copy_(known)
            dist.broadcast(named[name].data, 0)


@contextlib.contextmanager
def broadcast_before(model: nn.Module) -> Iterator[None]:
    """Broadcasts weights and buffers of rank 0 before every training forward."""

    def enter(*_: object) -> None:
        if torch.is_grad_enabled():
            broadcast(model, {})

    with nn.Module.register_forward_pre_hook(model, enter):
        yield
