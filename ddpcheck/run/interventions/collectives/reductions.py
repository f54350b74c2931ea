"""Sums over ranks that become means, and all-reduces that are skipped.

MEAN_OF_COUNTS: sums of tensors without a gradient, which count something. A term that
is divided by a count of all ranks, and whose gradient DDP divides by the world size
again, is right with the mean of the counts. Counts are integers and their mean is not:
such a tensor keeps its value, and what is computed from it uses the mean.

MEAN_OF_SUMS: sums that carry gradients. torch's differentiable all-reduce, imported by
any name, and autograd functions of the target whose forward adds up over ranks: their
results are divided by the world size, and autograd divides the gradient too.
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Iterator
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.nn.functional as dnn
from torch import Tensor

from ddpcheck.compare import tree
from ddpcheck.run import private
from ddpcheck.run.process import callers
from ddpcheck.run.process.modes import FunctionMode
from ddpcheck.run.process.replacing import functions_run_by, replaced

# Functions that need the count itself: they compare it or return its type.
_KEEP = {"eq", "ne", "lt", "le", "gt", "ge", "__bool__", "__index__", "__get__"}
_FUNCTIONS = torch.autograd.Function.__module__
_DEPTH = 12  # of frames between a collective and an autograd function that calls it


class _Means(FunctionMode):
    """Computes with the means of sums over ranks, whatever computes with the sums."""

    def __init__(self) -> None:
        super().__init__()
        self._sums: dict[int, weakref.ref[Tensor]] = {}
        self.depth = 0  # frames, of functions that reduce as one part of their work

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """Leaves sums alone that are a part of something else."""
        self.depth += 1
        try:
            yield
        finally:
            self.depth -= 1

    def applied(self, apply: Any, _: Any, *args: Any, **kwargs: Any) -> Any:
        """Excludes the sums that the forward of an autograd function computes."""
        with self.inside():
            return apply(*args, **kwargs)

    def add(self, summed: Tensor) -> None:
        """Takes the sum over ranks of whole numbers as one from here on."""
        self._sums[id(summed)] = weakref.ref(summed)

    def called(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Calls the function."""
        name = getattr(func, "__name__", "")
        if not self._sums or name in _KEEP:
            return func(*args, **kwargs)
        if name.endswith("_") and not name.endswith("__"):  # writes into its first
            return func(*args[:1], *self._means(args[1:]), **self._means(kwargs))
        return func(*self._means(args), **self._means(kwargs))

    def _means(self, given: Any) -> Any:
        return tree.replace(given, self._mean)

    def _mean(self, _: str, value: Tensor) -> Tensor:
        known = self._sums.get(id(value))
        if known is None or known() is not value:
            return value
        with private.no_torch_function():
            return value.double() / dist.get_world_size()


@contextlib.contextmanager
def averaged_sums() -> Iterator[None]:
    """Makes sums over ranks of tensors without a gradient their means."""
    with (
        _Means() as means,
        functions_run_by(means.applied),
        replaced(dist, all_reduce=_in_place(dist.all_reduce, means)),
        replaced(dnn, all_reduce=_out_of_place(dnn.all_reduce, means)),
    ):
        yield


def _in_place(reduce: Any, means: _Means) -> Any:
    @functools.wraps(reduce)
    def all_reduce(
        tensor: Tensor, op: Any = dist.ReduceOp.SUM, *args: Any, **kwargs: Any
    ) -> Any:
        done = reduce(tensor, op, *args, **kwargs)
        if op != dist.ReduceOp.SUM or tensor.requires_grad:
            return done
        if means.depth or _is_in_a_backward():
            return done
        if isinstance(done, dist.Work):  # async_op=True
            done.wait()
        _become_mean(tensor, means)
        return done

    return all_reduce


def _out_of_place(reduce: Any, means: _Means) -> Any:
    @functools.wraps(reduce)
    def all_reduce(
        tensor: Tensor, op: Any = dist.ReduceOp.SUM, *args: Any, **kwargs: Any
    ) -> Any:
        with means.inside():
            result = reduce(tensor, op, *args, **kwargs)
        if op == dist.ReduceOp.SUM and not tensor.requires_grad:
            _become_mean(result, means)
        return result

    return all_reduce


def _become_mean(summed: Tensor, means: _Means) -> None:
    if summed.is_floating_point():
        with torch.no_grad(), private.no_torch_function():
            summed.div_(dist.get_world_size())
    else:
        means.add(summed)


def _is_in_a_backward() -> bool:
    """Returns whether the backward of an autograd function calls."""
    frame: FrameType | None = callers.frame(2)
    for _ in range(_DEPTH):
        if frame is None:
            return False
        if frame.f_code.co_name == "apply" and callers.module_of(frame) == _FUNCTIONS:
            return True
        frame = frame.f_back
    return False


_TORCHS = (dnn.__name__, "_AllReduce")  # the autograd function of its all_reduce
_NOT_THE_USERS = ("torch.", "ddpcheck.")


class _Sums:
    """Counts sums over ranks, which the forward of an autograd function may call."""

    def __init__(self) -> None:
        self.count = 0

    def counted(self, reduce: Any) -> Any:
        def all_reduce(
            tensor: Tensor, op: Any = dist.ReduceOp.SUM, *args: Any, **kwargs: Any
        ) -> Any:
            self.count += op == dist.ReduceOp.SUM
            return reduce(tensor, op, *args, **kwargs)

        return all_reduce

    def applied(self, apply: Any, cls: Any, *args: Any, **kwargs: Any) -> Any:
        """Makes what a function returns that sums over ranks a mean."""
        count = self.count
        result = apply(*args, **kwargs)
        is_sum = _is_torchs_sum(cls, args) or (
            self.count > count and not cls.__module__.startswith(_NOT_THE_USERS)
        )
        return tree.replace(result, _mean) if is_sum else result


@contextlib.contextmanager
def averaged_gradient_sums() -> Iterator[None]:
    """Makes sums over ranks of tensors with a gradient their means."""
    sums = _Sums()
    with (
        replaced(dist, all_reduce=sums.counted(dist.all_reduce)),
        functions_run_by(sums.applied),
    ):
        yield


def _is_torchs_sum(cls: Any, args: tuple[Any, ...]) -> bool:
    is_of_torch = (cls.__module__, cls.__name__) == _TORCHS
    return is_of_torch and dist.ReduceOp.SUM in args[:1]


def _mean(_: str, value: Tensor) -> Tensor:
    return value / dist.get_world_size() if value.requires_grad else value
