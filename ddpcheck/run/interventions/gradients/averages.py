"""Interventions on gradients that DDP does not average, or that user code averages.

AverageGradients: those of some parameters are averaged over ranks after each
backward, and before an update.

AVERAGED_AT_UPDATE: no backward is reduced; all gradients are averaged over ranks
when an optimizer steps.

FILLED_GRADIENTS: a parameter with a gradient on some rank has one on all ranks: zeros
where a rank does not use it. Code that skips gradients that are None then meets the
same parameters on every rank.

CONTIGUOUS_GRADIENTS: gradients are contiguous. For others, as those of a model in
channels_last, reshape(-1) returns a copy: writing to it does not change the gradient.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from ddpcheck.run.intervention import AverageGradients, Interventions, Switch
from ddpcheck.run.interventions.gradients import backwards
from ddpcheck.run.model import averaged, contents
from ddpcheck.run.model.names import shortener
from ddpcheck.run.observe import patches
from ddpcheck.run.process import callers
from ddpcheck.run.process.replacing import replaced


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

    with (
        register_optimizer_step_pre_hook(before_update),
        patches.sync_flag_held(is_set=False),
    ):
        yield


def filled_gradients(model: nn.Module) -> contextlib.AbstractContextManager[None]:
    """Fills gradients after every outermost backward.

    Args:
        model: its trainable parameters are filled, in the order of their names.
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


class _Mean(torch.autograd.Function):
    """Mean over ranks, under torch.vmap too: of all that is mapped over at once."""

    @staticmethod
    def forward(value: Tensor) -> Tensor:
        mean = value.detach().contiguous().clone()
        dist.distributed_c10d.all_reduce(mean)
        return mean / dist.get_world_size()

    @staticmethod
    def setup_context(*_: Any) -> None:
        """Keeps nothing: what comes out has no gradient."""

    @staticmethod
    def vmap(_: Any, dims: tuple[int, ...], value: Tensor) -> tuple[Tensor, int]:
        return _Mean.apply(value), dims[0]  # type: ignore[no-untyped-call]


def averaged_grad(model: nn.Module) -> contextlib.AbstractContextManager[None]:
    """Makes torch.autograd.grad of the model's parameters average over ranks."""
    grad = torch.autograd.grad
    ids = {id(p) for p in contents.parameters(model)}

    def averaged(outputs: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        given = [inputs] if isinstance(inputs, Tensor) else list(inputs)
        if isinstance(inputs, Iterator):  # model.parameters()
            inputs = given
        found = grad(outputs, inputs, *args, **kwargs)
        if kwargs.get("create_graph") or not all(id(p) in ids for p in given):
            return found
        return tuple(None if t is None else _Mean.apply(t) for t in found)  # type: ignore[no-untyped-call]

    return replaced(torch.autograd, grad=averaged)


@contextlib.contextmanager
def off_after_backward(*, of_gradients: bool) -> Iterator[None]:
    """Makes dist.all_reduce do nothing between a backward and the optimizer's step.

    Within that step it skips tensors with at most as many elements as there are trained
    parameters, for example norms, but no gradients. `of_gradients`: skips any tensor.
    """
    reduce, backward = dist.all_reduce, torch.autograd.backward
    is_after = False
    steps: list[list[Tensor]] = []  # parameters of the optimizers that are stepping

    def all_reduce(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        # Explicit averaging of gradients (ddpcheck.run) is not skipped.
        caller = callers.module_of(callers.frame(1))
        is_off = is_after or any(
            of_gradients or _is_from_gradients(tensor, trained) for trained in steps
        )
        if is_off and not caller.startswith("ddpcheck."):
            return None
        return reduce(tensor, *args, **kwargs)

    def run(*args: Any, **kwargs: Any) -> None:
        nonlocal is_after
        is_after = False
        backward(*args, **kwargs)
        is_after = True

    def before_update(optimizer: Any, *_: Any) -> None:
        nonlocal is_after
        is_after = False
        steps.append([p for group in optimizer.param_groups for p in group["params"]])

    def after_update(*_: Any) -> None:
        steps.pop()

    with (
        replaced(dist, all_reduce=all_reduce),
        replaced(torch.autograd, backward=run),
        register_optimizer_step_pre_hook(before_update),
        register_optimizer_step_post_hook(after_update),
    ):
        yield


def _is_from_gradients(tensor: Any, trained: list[Tensor]) -> bool:
    """Returns whether a tensor is computed from gradients without being one."""
    if not isinstance(tensor, Tensor) or tensor.numel() > max(1, len(trained)):
        return False
    grads = [p.grad for p in trained if p.grad is not None]
    return all(tensor.data_ptr() != grad.data_ptr() for grad in grads)
