"""Interventions that multiply gradients by a factor.

CountMicroBatches divides by one count over all micro-batches and ranks. It also changes
the single-process result (the mean of micro-batch means becomes the mean over the whole
step), so it is applied to the reference too.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from ddpcheck.compare import tree
from ddpcheck.run.intervention import (
    CountLoss,
    CountMicroBatches,
    GlobalLoss,
    Interventions,
    ScaleDirect,
    ScaleGradients,
    ScaleLoss,
    ScaleOutputs,
    ScaleTerms,
    Switch,
    found,
)
from ddpcheck.run.interventions import sharding
from ddpcheck.run.interventions.gradients import backwards
from ddpcheck.run.interventions.gradients.loss_terms import (
    scaled_direct_use,
    scaled_outputs,
    scaled_parameters,
    scaled_terms,
)
from ddpcheck.run.observe import countables


def enter(
    stack: contextlib.ExitStack,
    fixes: Interventions,
    shard_targets: Callable[[], Any],
    model: Callable[[], nn.Module],
) -> None:
    """Enters the interventions that multiply gradients by a factor."""
    if (scale := found(fixes, ScaleLoss)) is not None:
        stack.enter_context(_scaled_backward(lambda: scale.factor))
    if (counted := found(fixes, CountLoss)) is not None:
        stack.enter_context(
            _scaled_backward(lambda: _count_factor(counted.countable, shard_targets()))
        )
    if found(fixes, GlobalLoss) is not None:
        stack.enter_context(_scaled_backward(lambda: float(dist.get_world_size())))
    for by_number in (True, False):
        each = (f for f in fixes if isinstance(f, CountMicroBatches))
        counts = next((f for f in each if f.by_number == by_number), None)
        if counts is None:
            continue
        share = Accumulation(
            counts.countable, model(), shard_targets, by_number=by_number
        )
        stack.callback(share.remove)
        stack.enter_context(_scaled_backward(share.factor))
    if Switch.LOADER_UNPADDED in fixes:
        weigh = stack.enter_context(sharding.unpadded(model()))
        stack.enter_context(_scaled_backward(weigh))
    _enter_by_place(stack, fixes, model)


def _enter_by_place(
    stack: contextlib.ExitStack, fixes: Interventions, model: Callable[[], nn.Module]
) -> None:
    """Enters those that scale some uses of a parameter, or some parameters."""
    if (direct := found(fixes, ScaleDirect)) is not None:
        stack.enter_context(scaled_direct_use(model(), direct.factor))
    if (terms := found(fixes, ScaleTerms)) is not None:
        stack.enter_context(scaled_terms(model(), terms.factor))
    if (some := found(fixes, ScaleGradients)) is not None:
        stack.enter_context(scaled_parameters(model(), some.factor, some.names))
    if (outputs := found(fixes, ScaleOutputs)) is not None:
        stack.enter_context(scaled_outputs(model(), outputs.factor, outputs.paths))


def _scaled_backward(
    factor: Callable[[], float],
) -> contextlib.AbstractContextManager[None]:
    """Starts every outermost backward that trains from `factor()` instead of 1."""

    def run(backward: Any, tensors: Any, *args: Any, **kwargs: Any) -> None:
        if backwards.trains(tensors):
            backward = backwards.multiplied(backward, factor())
        backward(tensors, *args, **kwargs)

    return backwards.outermost(run)


def _count_factor(countable: str, targets: Any) -> float:
    """Returns W * n_r / N."""
    mine = torch.tensor([countables.count(countable, targets)], dtype=torch.float64)
    total = mine.clone()
    dist.all_reduce(total)
    return float(dist.get_world_size() * mine / total)


class Accumulation:
    """Tracks the samples of the current micro-batch, and so its share of all.

    Args:
        countable: the count that divides the loss of each micro-batch.
        model: the bare model; each call begins a micro-batch.
        targets: returns the targets that this process counts, for the current step.
        by_number: each loss is also divided by the number of micro-batches.
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
        """Removes the hook of the model."""
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
