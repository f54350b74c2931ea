"""The intervention CountMicroBatches: one count over all micro-batches and all ranks.

It changes what one process computes too (the mean of micro-batch means becomes the
mean over the whole step), so it is applied to the reference as well.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from ddpcheck.compare import tree
from ddpcheck.run.observe import countables


class Accumulation:
    """Knows which samples the current micro-batch holds, and so its share.

    Args:
        countable: what each micro-batch's loss is divided by.
        model: the bare model; its calls tell the micro-batches apart.
        targets: gives what this process counts in, for the current step.
        by_number: each loss is divided by the number of micro-batches, too.
    """

    def __init__(
        self,
        countable: str,
        model: nn.Module,
        targets: Callable[[], Any],
        *,
        by_number: bool = True,
    ) -> None:
        self._countable, self._targets = countable, targets
        self._by_number = by_number
        self._next = self._start = self._rows = self._most = 0
        self._total = 0.0
        self._hook = nn.Module.register_forward_pre_hook(
            model, self._enter, with_kwargs=True
        )

    def remove(self) -> None:
        """Takes the hook off the model."""
        self._hook.remove()

    def factor(self) -> float:
        """Returns W * n_j * k / N for the micro-batch of the last forward.

        k is the number of micro-batches, of which the last may be smaller; 1 where the
        losses are not divided by it.
        """
        targets = self._targets()
        size = countables.samples(targets)
        start, rows = self._start, self._rows
        if not rows:
            return 1.0
        micro = countables.part(targets, size, slice(start, start + rows))
        world_size = dist.get_world_size() if dist.is_initialized() else 1
        count = countables.count(self._countable, micro)
        number = math.ceil(size / self._most) if self._by_number else 1
        return world_size * count * number / max(self._total, 1.0)

    def _enter(self, _: nn.Module, args: Any, kwargs: Any) -> None:
        rows = next((len(t) for t in tree.held((args, kwargs)) if t.dim()), 0)
        targets = self._targets()
        if not self._next or self._next + rows > countables.samples(targets):
            self._next = self._most = 0  # a new step
            # Once: ranks may have more micro-batches than others.
            count = countables.count(self._countable, targets)
            total = torch.tensor([count], dtype=torch.float64)
            if dist.is_initialized():
                dist.all_reduce(total)
            self._total = float(total)
        self._start, self._rows = self._next, rows
        self._most = max(self._most, rows)
        self._next += rows
