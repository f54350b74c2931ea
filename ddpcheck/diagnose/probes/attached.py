"""Cuts that stay in the graph, for steps that differentiate by themselves.

A penalty on a critic's slope, weights from the gradients of several losses: there
torch.autograd.grad asks for the way from an output back into the model, which a cut
would end. An attached cut goes on with the reference's value and lets gradients
through; its leaf gets what `backward` sends there, and not what `autograd.grad` does.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from ddpcheck.run.fixes import backwards


class _Seated(torch.autograd.Function):
    @staticmethod
    def forward(_: Any, output: Tensor, value: Tensor) -> Tensor:
        del output
        return value.clone()

    @staticmethod
    def backward(_: Any, grad: Tensor) -> Any:
        return grad, None


class Attached:
    """Cuts of one step: enter `noting` around it."""

    def __init__(self) -> None:
        self._in_backward = False

    def through(self, output: Tensor, leaf: Tensor) -> Tensor:
        """Returns the leaf's values in the graph of an output.

        What no operation computed is returned as it is: inputs that a model hands on
        are what its other outputs are differentiated by.

        Args:
            output: what a module computed.
            leaf: of the same shape; its `grad` will be what backward sends here.
        """
        if output.grad_fn is None:
            return output
        seated: Tensor = _Seated.apply(output, leaf.detach())  # type: ignore[no-untyped-call]

        def note(grad: Tensor) -> None:
            if self._in_backward:
                mine = grad.detach()
                leaf.grad = mine.clone() if leaf.grad is None else leaf.grad + mine

        seated.register_hook(note)
        return seated

    @contextlib.contextmanager
    def noting(self) -> Iterator[None]:
        """Stands around a step, whose backward passes it tells from other gradients."""

        def run(backward: Callable[..., None], *args: Any, **kwargs: Any) -> None:
            self._in_backward = True
            try:
                backward(*args, **kwargs)
            finally:
                self._in_backward = False

        with backwards.outermost(run):
            yield
