"""The repeated batch: gradients of a mean stay, those of a sum double."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from ddpcheck.compare import tree
from ddpcheck.diagnose.probes import fits
from ddpcheck.diagnose.probes.coupling import Grads, Pass


def at_cuts(
    run: Pass, grads: Grads, dim: Callable[[str, Tensor], int], batch: Any
) -> Iterator[tuple[int, str, Tensor]]:
    """Yields (micro-batch, key, gradient) at the first half of the repeated batch.

    It is half of that on the batch for a mean, the same for a sum.

    Args:
        run: one pass on the first pass's values, perturbed, and a batch.
        grads: of the first pass.
        dim: where the samples of a key's tensor are.
        batch: the global batch.
    """

    def twice(key: str, value: Tensor) -> Tensor:
        return torch.cat([value, value], dim(key, value))

    try:
        found = run(twice, _twice(batch))
    except Exception:  # noqa: BLE001 (fixed batch sizes, lookups by index)
        return
    for (number, key), grad in grads.items():
        both = found.get((number, key))
        if grad is not None and both is not None:
            at = dim(key, grad)
            yield number, key, both.narrow(at, 0, grad.shape[at])


def of_parameters(
    grads_of: Callable[[Any], dict[str, Tensor]], batch: Any
) -> float | None:
    """Returns grad(batch twice) / grad(batch), where one factor fits.

    Args:
        grads_of: the gradients of a plain step on a batch, by parameter.
        batch: the global batch.
    """
    try:
        once, both = grads_of(batch), grads_of(_twice(batch))
    except Exception:  # noqa: BLE001 (fixed batch sizes, lookups by index)
        return None
    return fits.one_factor(once, both)


def _twice(batch: Any) -> Any:
    if isinstance(batch, tree.Collated):
        return batch.rows(torch.arange(len(batch.samples)).repeat(2))
    return tree.replace(batch, lambda _, t: torch.cat([t, t]) if t.dim() else t)
