"""The same mathematics with other rounding: what a run's own noise is measured with.

Multiplying a loss by 3 and its gradients by 1/3 changes nothing but every rounding of
the backward pass; permuting the batch (RunSpec.permute) changes the order of its sums.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ddpcheck import tree
from ddpcheck.run import private
from ddpcheck.run.fixes import backwards

_FACTOR = 3.0  # not a power of two, so that every product rounds anew


def rescaled(
    parameters: Callable[[], dict[str, Tensor]],
) -> contextlib.AbstractContextManager[None]:
    """Scales each outermost backward by 3, and what it added to gradients by 1/3."""

    def run(backward: Any, *args: Any, **kwargs: Any) -> None:
        before = {
            n: None if p.grad is None else p.grad.clone()
            for n, p in parameters().items()
        }
        backwards.multiplied(backward, _FACTOR)(*args, **kwargs)
        with torch.no_grad():
            for name, parameter in parameters().items():
                _unscale(parameter, before.get(name))

    return backwards.outermost(run)


def _unscale(parameter: Tensor, before: Tensor | None) -> None:
    if parameter.grad is None:
        return
    if before is None:
        parameter.grad = parameter.grad / _FACTOR
    else:
        parameter.grad = before + (parameter.grad - before) / _FACTOR


def jitter(model: nn.Module, size: float) -> None:
    """Changes every weight by up to `size` of itself, at random."""
    if not size:
        return
    with torch.no_grad():
        for number, parameter in enumerate(model.parameters()):
            parameter.mul_(_near_one(parameter, size, number))


def jittered(batch: Any, size: float) -> Any:
    """Returns the batch with every real number changed by up to `size` of itself."""
    if not size:
        return batch
    return tree.replace(
        batch,
        lambda path, t: (
            t * _near_one(t, size, len(path)) if t.is_floating_point() else t
        ),
    )


def _near_one(tensor: Tensor, size: float, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    draw = torch.rand(tensor.shape, generator=generator, dtype=torch.float64)
    return 1 + (2 * draw - 1).to(tensor) * size


class Precision(private.DispatchMode):
    """Notes the lowest precision that any operation computes in."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.epsilon = 0.0  # of a dtype: the distance of 1 and the next number

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Calls the operation and looks at what it returns."""
        del types
        result = func(*args, **(kwargs or {}))
        for _, tensor in tree.tensors(result):
            if tensor.is_floating_point():
                self.epsilon = max(self.epsilon, torch.finfo(tensor.dtype).eps)
        return result
