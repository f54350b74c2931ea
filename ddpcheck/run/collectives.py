"""Raw collectives that carry gradients: the intervention for those that do not."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from ddpcheck.run.gather import gathered


class _ReduceInPlace(torch.autograd.Function):
    """An all-reduce in place that autograd sees: its backward sums over ranks."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, reduce: Callable[[Tensor], Any]) -> Tensor:
        ctx.mark_dirty(tensor)
        reduce(tensor)
        return tensor

    @staticmethod
    def backward(_: Any, grad: Tensor) -> Any:
        total = grad.contiguous().clone()
        dist.distributed_c10d.all_reduce(total)
        return total, None


@contextlib.contextmanager
def autograd_collectives() -> Iterator[None]:
    """Makes dist.all_reduce and dist.all_gather differentiable inside."""
    reduce, gather = dist.all_reduce, dist.all_gather

    def all_reduce(
        tensor: Tensor, op: Any = dist.ReduceOp.SUM, *args: Any, **kwargs: Any
    ) -> Any:
        if not (tensor.requires_grad and tensor.grad_fn is not None):
            return reduce(tensor, op, *args, **kwargs)
        if op == dist.ReduceOp.AVG:
            _ReduceInPlace.apply(tensor, lambda t: reduce(t, op, *args, **kwargs))  # type: ignore[no-untyped-call]
            tensor.register_hook(lambda g: g / dist.get_world_size())
            return None
        _ReduceInPlace.apply(tensor, lambda t: reduce(t, op, *args, **kwargs))  # type: ignore[no-untyped-call]
        return None

    def all_gather(
        tensors: list[Tensor], tensor: Tensor, *args: Any, **kwargs: Any
    ) -> Any:
        result = gather(tensors, tensor.detach(), *args, **kwargs)
        if tensor.requires_grad:
            # A helper may gather under no_grad: that is how gradients get lost, too.
            with torch.enable_grad():
                whole = gathered(tensor, 0, tuple(len(t) for t in tensors))
                for target, part in zip(
                    tensors, whole.split([len(t) for t in tensors]), strict=True
                ):
                    target.copy_(part)
        return result

    dist.all_reduce, dist.all_gather = all_reduce, all_gather  # type: ignore[assignment]
    try:
        yield
    finally:
        dist.all_reduce, dist.all_gather = reduce, gather


@contextlib.contextmanager
def averaged_grad(model: nn.Module) -> Iterator[None]:
    """Makes torch.autograd.grad of the model's parameters average over ranks."""
    grad = torch.autograd.grad
    ids = {id(p) for p in model.parameters()}

    def averaged(outputs: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        given = [inputs] if isinstance(inputs, Tensor) else list(inputs)
        if isinstance(inputs, Iterator):  # model.parameters()
            inputs = given
        found = grad(outputs, inputs, *args, **kwargs)
        if kwargs.get("create_graph") or not all(id(p) in ids for p in given):
            return found
        for tensor in [t for t in found if t is not None]:
            dist.distributed_c10d.all_reduce(tensor)
            tensor.div_(dist.get_world_size())
        return found

    torch.autograd.grad = averaged
    try:
        yield
    finally:
        torch.autograd.grad = grad


@contextlib.contextmanager
def off_after_backward() -> Iterator[None]:
    """Makes dist.all_reduce do nothing between a backward and the optimizer's step."""
    reduce, backward = dist.all_reduce, torch.autograd.backward
    is_after = False

    def all_reduce(*args: Any, **kwargs: Any) -> Any:
        # What averages gradients by hand (ddpcheck.run) goes on.
        caller = str(sys._getframe(1).f_globals.get("__name__", ""))  # noqa: SLF001
        is_off = is_after and not caller.startswith("ddpcheck.")
        return None if is_off else reduce(*args, **kwargs)

    def run(*args: Any, **kwargs: Any) -> None:
        nonlocal is_after
        is_after = False
        backward(*args, **kwargs)
        is_after = True

    def before_update(*_: Any) -> None:
        nonlocal is_after
        is_after = False

    dist.all_reduce, torch.autograd.backward = all_reduce, run
    hook = register_optimizer_step_pre_hook(before_update)
    try:
        yield
    finally:
        hook.remove()
        dist.all_reduce, torch.autograd.backward = reduce, backward
