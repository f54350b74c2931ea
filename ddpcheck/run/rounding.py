"""The same mathematics with other rounding: what a run's own noise is measured with.

Multiplying a loss by 3 and its gradients by 1/3 changes nothing but every rounding of
the backward pass; permuting the batch (RunSpec.permute) changes the order of its sums.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

_FACTOR = 3.0  # not a power of two, so that every product rounds anew


@contextlib.contextmanager
def rescaled(parameters: Callable[[], dict[str, nn.Parameter]]) -> Iterator[None]:
    """Scales each outermost backward by 3, and what it added to gradients by 1/3."""
    depth = 0
    backward = torch.autograd.backward

    def run(tensors: Any, grad_tensors: Any = None, *args: Any, **kwargs: Any) -> None:
        nonlocal depth
        if depth:
            backward(tensors, grad_tensors, *args, **kwargs)
            return
        before = {
            n: None if p.grad is None else p.grad.clone()
            for n, p in parameters().items()
        }
        depth += 1
        try:
            backward(tensors, _scaled(tensors, grad_tensors), *args, **kwargs)
        finally:
            depth -= 1
        with torch.no_grad():
            for name, parameter in parameters().items():
                _unscale(parameter, before.get(name))

    torch.autograd.backward = run
    try:
        yield
    finally:
        torch.autograd.backward = backward


def _scaled(tensors: Any, grads: Any) -> list[Any]:
    outputs = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
    given = (
        [grads]
        if isinstance(grads, torch.Tensor)
        else list(grads or [None] * len(outputs))
    )
    return [
        torch.full_like(o, _FACTOR) if g is None else g * _FACTOR
        for o, g in zip(outputs, given, strict=True)
    ]


def _unscale(parameter: nn.Parameter, before: torch.Tensor | None) -> None:
    if parameter.grad is None:
        return
    if before is None:
        parameter.grad = parameter.grad / _FACTOR
    else:
        parameter.grad = before + (parameter.grad - before) / _FACTOR
