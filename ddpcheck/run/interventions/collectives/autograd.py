"""Differentiable versions of the collectives that carry no gradients.

An autograd function of the target that calls a collective has a backward of its own,
which may be incomplete: its forward is then recorded by autograd instead.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.nn.functional as dnn
from torch import Tensor

from ddpcheck.run.interventions.rows.gather import gathered
from ddpcheck.run.process.replacing import functions_run_by, replaced

_SOURCE = "ddpcheck_source"  # attribute of a tensor: the tensor it was detached from


@contextlib.contextmanager
def autograd_collectives(*, attaches: bool = False) -> Iterator[None]:
    """Makes dist.all_reduce and all_gather, by either name, differentiable inside.

    `attaches`: gradients also reach the tensors that the inputs were detached from.
    """
    functions = _Functions()
    with (
        _noting_sources() if attaches else contextlib.nullcontext(),
        replaced(
            dist,
            all_reduce=functions.counted(_all_reduce(dist.all_reduce)),
            all_gather=functions.counted(_all_gather(dist.all_gather)),
            all_gather_into_tensor=functions.counted(
                _all_gather_into_tensor(dist.all_gather_into_tensor)
            ),
        ),
        functions_run_by(functions.applied),
    ):
        yield


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


def _all_reduce(reduce: Any) -> Any:
    def all_reduce(
        tensor: Tensor, op: Any = dist.ReduceOp.SUM, *args: Any, **kwargs: Any
    ) -> Any:
        if not (tensor.requires_grad and tensor.grad_fn is not None):
            return reduce(tensor, op, *args, **kwargs)
        _ReduceInPlace.apply(tensor, lambda t: reduce(t, op, *args, **kwargs))  # type: ignore[no-untyped-call]
        if op == dist.ReduceOp.AVG:
            tensor.register_hook(lambda g: g / dist.get_world_size())
        return None

    return all_reduce


def _noting_sources() -> contextlib.AbstractContextManager[None]:
    """Records from which tensor each detached tensor comes."""
    before = Tensor.detach

    def detach(tensor: Tensor) -> Tensor:
        detached = before(tensor)
        setattr(detached, _SOURCE, getattr(tensor, _SOURCE, tensor))
        return detached

    return replaced(Tensor, detach=detach)


def _source(tensor: Tensor) -> Tensor:
    found: Tensor = getattr(tensor, _SOURCE, tensor)
    return found


def _all_gather(gather: Any) -> Any:
    def all_gather(
        tensors: list[Tensor], tensor: Tensor, *args: Any, **kwargs: Any
    ) -> Any:
        result = gather(tensors, tensor.detach(), *args, **kwargs)
        tensor = _source(tensor)
        if tensor.requires_grad:
            # A helper may gather under no_grad: that is how gradients get lost, too.
            with torch.enable_grad():
                sizes = tuple(len(t) for t in tensors)
                whole = gathered(tensor, 0, sizes)
                for target, part in zip(tensors, whole.split(sizes), strict=True):
                    target.copy_(part)
        return result

    return all_gather


def _all_gather_into_tensor(gather: Any) -> Any:
    def all_gather_into_tensor(
        whole: Tensor, tensor: Tensor, *args: Any, **kwargs: Any
    ) -> Any:
        result = gather(whole, tensor.detach(), *args, **kwargs)
        tensor = _source(tensor)
        if tensor.requires_grad:
            with torch.enable_grad():
                sizes = (len(tensor),) * dist.get_world_size()
                whole.copy_(gathered(tensor, 0, sizes).view_as(whole))
        return result

    return all_gather_into_tensor


class _Functions:
    """The target's own autograd functions, of which some call collectives."""

    def __init__(self) -> None:
        self.calls = 0
        self._communicate: dict[type, bool] = {}

    def counted(self, collective: Any) -> Any:
        def count(*args: Any, **kwargs: Any) -> Any:
            self.calls += 1
            return collective(*args, **kwargs)

        return count

    def applied(self, apply: Any, cls: Any, *args: Any, **kwargs: Any) -> Any:
        """Lets autograd derive the backward of functions that call collectives."""
        if cls.__module__ == dnn.__name__:
            with torch.enable_grad():  # a helper may call it under no_grad
                return apply(*args, **kwargs)
        if cls not in self._communicate:
            calls = self.calls
            result = apply(*args, **kwargs)
            self._communicate[cls] = _is_users(cls) and self.calls > calls
            if not self._communicate[cls]:
                return result
        if not self._communicate[cls]:
            return apply(*args, **kwargs)
        own = "setup_context" in cls.__dict__
        context = () if own else (_Context(args),)
        return cls.forward(*context, *args, **kwargs)


def _is_users(cls: type) -> bool:
    return not cls.__module__.startswith(("torch.", "ddpcheck."))


class _Context:
    """The `ctx` argument of forward, for a backward that is not run."""

    def __init__(self, args: tuple[Any, ...]) -> None:
        self.needs_input_grad = tuple(
            isinstance(a, Tensor) and a.requires_grad for a in args
        )

    def save_for_backward(self, *_: Any) -> None:
        """Keeps nothing."""

    mark_dirty = mark_non_differentiable = save_for_forward = save_for_backward

    def set_materialize_grads(self, value: bool) -> None:  # noqa: FBT001
        """Does nothing."""
