"""Interventions on what a target reduces itself, besides what its loss reduces."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from ddpcheck.run.model import contents
from ddpcheck.run.process import callers


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


@contextlib.contextmanager
def averaged_grad(model: nn.Module) -> Iterator[None]:
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

    torch.autograd.grad = averaged
    try:
        yield
    finally:
        torch.autograd.grad = grad


@contextlib.contextmanager
def off_after_backward(*, of_gradients: bool) -> Iterator[None]:
    """Makes dist.all_reduce do nothing between a backward and the optimizer's step.

    Nor within that step, for a tensor of no more numbers than it trains parameters,
    which is none of their gradients: norms of them, say. `of_gradients`: for any.
    """
    reduce, backward = dist.all_reduce, torch.autograd.backward
    is_after = False
    steps: list[list[Tensor]] = []  # parameters of the optimizers that are stepping

    def all_reduce(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        # What averages gradients by hand (ddpcheck.run) goes on.
        caller = callers.module_of(callers.frame(1))
        is_off = is_after or any(
            of_gradients or _is_beside(tensor, trained) for trained in steps
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

    dist.all_reduce, torch.autograd.backward = all_reduce, run
    hooks = (
        register_optimizer_step_pre_hook(before_update),
        register_optimizer_step_post_hook(after_update),
    )
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
        dist.all_reduce, torch.autograd.backward = reduce, backward


def _is_beside(tensor: Any, trained: list[Tensor]) -> bool:
    """Returns whether a tensor is made of gradients, and is none of them."""
    if not isinstance(tensor, Tensor) or tensor.numel() > max(1, len(trained)):
        return False
    grads = [p.grad for p in trained if p.grad is not None]
    return all(tensor.data_ptr() != grad.data_ptr() for grad in grads)
