"""Cuts that stay in the graph, for steps that call torch.autograd.grad.

A penalty on a critic's slope, or weights from the gradients of several losses, needs
the graph from an output back into the model, which a cut would end. An attached cut has
the reference's value and passes gradients on; its leaf gets the gradients of
`backward`, and not those of `autograd.grad`. One output may be computed from another
before either is cut: a derivative with respect to a cut output is taken with respect to
the output itself, whose graph includes the cut.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from ddpcheck.compare import tree
from ddpcheck.run.interventions.gradients import backwards


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
        self._cut: dict[int, tuple[Tensor, Tensor]] = {}  # by id: itself, the output

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
        self._cut[id(seated)] = seated, output
        return seated

    def _uncut(self, tensor: Tensor) -> Tensor:
        while id(tensor) in self._cut:
            tensor = self._cut[id(tensor)][1]
        return tensor

    @contextlib.contextmanager
    def noting(self) -> Iterator[None]:
        """Stands around a step, whose backward passes it tells from other gradients."""

        def run(backward: Callable[..., None], *args: Any, **kwargs: Any) -> None:
            self._in_backward = True
            try:
                backward(*args, **kwargs)
            finally:
                self._in_backward = False

        grad = torch.autograd.grad

        def of_uncut(outputs: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            inputs = tree.replace(inputs, lambda _, tensor: self._uncut(tensor))
            return grad(outputs, inputs, *args, **kwargs)

        torch.autograd.grad = of_uncut
        try:
            with backwards.outermost(run):
                yield
        finally:
            torch.autograd.grad = grad
            self._cut.clear()
