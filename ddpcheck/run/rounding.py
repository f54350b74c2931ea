"""The same mathematics with other rounding: what a run's own noise is measured with.

Multiplying a loss by 3 and its gradients by 1/3 changes nothing but every rounding of
the backward pass; permuting the batch (RunSpec.permute) changes the order of its sums.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ddpcheck.run import backwards

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
