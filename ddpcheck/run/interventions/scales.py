"""Interventions that give gradients a factor; apply.py has their names."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from ddpcheck.run.fix_names import argument
from ddpcheck.run.interventions import backwards, sharding
from ddpcheck.run.interventions.accumulation import Accumulation
from ddpcheck.run.observe import countables
from ddpcheck.run.observe.direct import (
    scaled_direct_use,
    scaled_outputs,
    scaled_parameters,
)
from ddpcheck.run.observe.terms import scaled_terms


def enter(
    stack: contextlib.ExitStack,
    fixes: tuple[str, ...],
    shard_targets: Callable[[], Any],
    model: Callable[[], nn.Module],
) -> None:
    """Enters the interventions that give gradients a factor."""
    if (scale := argument(fixes, "loss.scale")) is not None:
        stack.enter_context(_scaled_backward(lambda: float(scale)))
    if (counted := argument(fixes, "loss.count")) is not None:
        stack.enter_context(
            _scaled_backward(lambda: _count_factor(counted, shard_targets()))
        )
    if argument(fixes, "loss.global") is not None:
        stack.enter_context(_scaled_backward(lambda: float(dist.get_world_size())))
    for name, by_number in (("target.accum", True), ("target.accum_sums", False)):
        if (each := argument(fixes, name)) is not None:
            share = Accumulation(each, model(), shard_targets, by_number=by_number)
            stack.callback(share.remove)
            stack.enter_context(_scaled_backward(share.factor))
    if argument(fixes, "data.unpadded") is not None:
        weigh = stack.enter_context(sharding.unpadded(model()))
        stack.enter_context(_scaled_backward(weigh))
    _enter_by_place(stack, fixes, model)


def _enter_by_place(
    stack: contextlib.ExitStack, fixes: tuple[str, ...], model: Callable[[], nn.Module]
) -> None:
    """Enters those that give a factor to what is used in some places, or to some."""
    for name, scaled in (
        ("direct.scale", scaled_direct_use),
        ("terms.scale", scaled_terms),
    ):
        if (each := argument(fixes, name)) is not None:
            stack.enter_context(scaled(model(), float(each)))
    for name, of_some in (
        ("gradients.scale", scaled_parameters),
        ("outputs.scale", scaled_outputs),
    ):
        if (each := argument(fixes, name)) is not None:
            factor, _, listed = each.partition("|")
            which = listed.split(",") if listed else []
            stack.enter_context(of_some(model(), float(factor), which))


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
