"""Interventions on gradients that DDP does not average, or code averages by hand.

AverageGradients: those of some parameters are averaged over ranks after each
backward, and before an update.

AVERAGED_AT_UPDATE: no backward is reduced; all gradients are averaged over ranks
when an optimizer steps.

FILLED_GRADIENTS: what has a gradient on some rank has one on all, of zeros where a
rank does not use the parameter. Code that leaves out those that are None then meets
the same parameters on every rank.

CONTIGUOUS_GRADIENTS: gradients are contiguous. Of others, as those of a model in
channels_last, reshape(-1) is a copy: what is done to it never reaches the gradient.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from ddpcheck.run.intervention import AverageGradients, Interventions, Switch
from ddpcheck.run.interventions import backwards
from ddpcheck.run.model import averaged, contents
from ddpcheck.run.model.names import shortener
from ddpcheck.run.observe import patches


def enter(
    stack: contextlib.ExitStack, fixes: Interventions, model: Callable[[], nn.Module]
) -> None:
    """Enters the interventions of this module that are among the fixes."""
    names = {
        name for fix in fixes if isinstance(fix, AverageGradients) for name in fix.names
    }
    if names:
        stack.enter_context(averaged_gradients(model(), names))
    for switch, context in {
        Switch.AVERAGED_AT_UPDATE: averaged_at_updates,
        Switch.FILLED_GRADIENTS: filled_gradients,
        Switch.CONTIGUOUS_GRADIENTS: contiguous_gradients,
    }.items():
        if switch in fixes:
            stack.enter_context(context(model()))


def averaged_gradients(
    model: nn.Module, names: Collection[str]
) -> contextlib.AbstractContextManager[None]:
    """Averages the gradients of the parameters of these names over ranks."""
    short = shortener(model)

    def chosen() -> dict[str, Tensor]:
        named = ((short(path), p) for path, p in contents.named_parameters(model))
        return {name: p for name, p in named if name in names and p.requires_grad}

    return averaged.averaging(chosen, dict)


@contextlib.contextmanager
def averaged_at_updates(model: nn.Module) -> Iterator[None]:
    """Leaves gradients local until an optimizer steps, and averages them then."""
    parameters = {n: p for n, p in contents.named_parameters(model) if p.requires_grad}

    def before_update(*_: Any) -> None:
        averaged.average(parameters)

    hook = register_optimizer_step_pre_hook(before_update)
    try:
        with patches.sync_flag_held(is_set=False):
            yield
    finally:
        hook.remove()


def filled_gradients(model: nn.Module) -> contextlib.AbstractContextManager[None]:
    """Fills gradients after every outermost backward.

    Args:
        model: whose trainable parameters are filled, in the order of their names.
    """

    def fill(parameters: list[nn.Parameter]) -> None:
        has_one = torch.tensor([float(p.grad is not None) for p in parameters])
        has_one = has_one.to(parameters[0].device)
        dist.all_reduce(has_one, dist.ReduceOp.MAX)
        for parameter, is_used in zip(parameters, has_one.tolist(), strict=True):
            if is_used and parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)

    return _after_backward(model, fill)


def contiguous_gradients(model: nn.Module) -> contextlib.AbstractContextManager[None]:
    """Makes gradients contiguous after every outermost backward."""

    def lay(parameters: list[nn.Parameter]) -> None:
        for parameter in parameters:
            if parameter.grad is not None:
                parameter.grad = parameter.grad.contiguous()

    return _after_backward(model, lay)


def _after_backward(
    model: nn.Module, change: Callable[[list[nn.Parameter]], None]
) -> contextlib.AbstractContextManager[None]:
    trainable = [p for p in contents.parameters(model) if p.requires_grad]

    def run(backward: Callable[..., None], *args: Any, **kwargs: Any) -> None:
        backward(*args, **kwargs)
        if trainable:
            change(trainable)

    return backwards.outermost(run)
