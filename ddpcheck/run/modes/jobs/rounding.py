"""The same mathematics with other rounding, to measure a run's own noise.

Multiplying a loss by 3 and its gradients by 1/3 changes nothing but every rounding of
the backward pass; permuting the batch (RunSpec.permute) changes the order of its sums.
The rounding of a matrix product depends on its number of rows, which no permutation
changes: float32 results within a float64 run are rounded once more (RunSpec.reround).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ddpcheck.compare import tree
from ddpcheck.run.interventions.gradients import backwards
from ddpcheck.run.model import contents, draws
from ddpcheck.run.process.modes import DispatchMode

_FACTOR = 3.0  # not a power of two, so every product rounds differently
_FEW = 8  # values that distinguish a copy from a computation


def rescaled(
    parameters: Callable[[], dict[str, Tensor]],
) -> contextlib.AbstractContextManager[None]:
    """Scales each outermost backward by 3, and its contribution to gradients by 1/3."""

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
        for number, parameter in enumerate(contents.parameters(model)):
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


class Precision(DispatchMode):
    """Records the lowest precision in which any operation computes.

    Args:
        reround: whether float32 results are rounded differently. Integers are exact in
            any computation: masks, counts and indices are unchanged.
    """

    def __init__(self, *, reround: bool = False) -> None:
        super().__init__()
        self.reround = reround
        self.epsilon = 0.0  # of a dtype: the distance of 1 and the next number

    def called(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Calls the operation and inspects its result."""
        result = func(*args, **kwargs)
        for tensor in tree.held(result):
            if tensor.is_floating_point():
                self.epsilon = max(self.epsilon, torch.finfo(tensor.dtype).eps)
                if self.reround and tensor.dtype == torch.float32:
                    _reround(tensor, func, args)
        return result


def _reround(tensor: Tensor, func: Any, args: Any) -> None:
    """Moves what an operation computed by up to one rounding of float32."""
    if draws.is_random(func, args, {}) or tensor.layout != torch.strided:
        return
    given = tree.held(args)
    place = tensor.untyped_storage().data_ptr()
    if any(t.untyped_storage().data_ptr() == place for t in given):
        return  # a view, or written in place
    rounded = tensor != tensor.round()
    if _are_given(tensor[rounded], given):
        return
    epsilon = torch.finfo(torch.float32).eps / 2
    moved = tensor * _near_one(tensor, epsilon, tensor.numel())
    tensor.copy_(torch.where(rounded, moved, tensor))


def _are_given(values: Tensor, given: list[Tensor]) -> bool:
    """Returns whether an operation copied or chose: a few of its values were given."""
    few = values[:: max(1, len(values) // _FEW)]
    near = [t.to(values.dtype) for t in given if t.is_floating_point()]
    return all(any(bool((t == value).any()) for t in near) for value in few)
