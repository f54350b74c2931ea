"""Interventions that give gradients a factor."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

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
from ddpcheck.run.interventions import backwards, sharding
from ddpcheck.run.interventions.accumulation import Accumulation
from ddpcheck.run.observe import countables
from ddpcheck.run.observe.loss_terms import (
    scaled_direct_use,
    scaled_outputs,
    scaled_parameters,
    scaled_terms,
)


def enter(
    stack: contextlib.ExitStack,
    fixes: Interventions,
    shard_targets: Callable[[], Any],
    model: Callable[[], nn.Module],
) -> None:
    """Enters the interventions that give gradients a factor."""
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
    """Enters those that give a factor to what is used in some places, or to some."""
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
