"""Switch.MEAN_OF_NUMBERS and SUM_OF_NUMBERS: ranks read the same numbers.

A rank that asks a tensor for its one number (`item()`, `float()`), or compares it, is
told the mean over ranks, and of a condition (`if`) whether it holds on any of them. A
loss is the mean over ranks as soon as its backward has ended: optimizers are given the
tensor itself. All ranks have to ask as often, as they do with collectives. Summed,
whole numbers are counts: what is read is that of all ranks.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.overrides import TorchFunctionMode

from ddpcheck.run import private
from ddpcheck.run.interventions import backwards

_READS = {"item", "bool", "float", "int"}
_COMPARES = {"lt", "le", "gt", "ge"}


class _Together(TorchFunctionMode):
    """Answers for all ranks, but within a backward: DDP's collectives are at work."""

    def __init__(self, *, sums: bool) -> None:
        super().__init__()
        self.sums = sums
        self.is_backward = False

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        del types
        name = getattr(func, "__name__", "").strip("_")
        asks = name in _READS | _COMPARES and not self.is_backward
        if not asks or not all(map(_is_a_number, args)):
            return func(*args, **(kwargs or {}))
        with private.no_torch_function():
            of_all = _sum_or_mean if self.sums and name != "bool" else _of_all
            told = [of_all(value, is_condition=name == "bool") for value in args]
            return func(*told, **(kwargs or {}))

    def run(self, backward: Callable[..., None], *args: Any, **kwargs: Any) -> None:
        """Runs a backward; what it began from is the mean over ranks after it."""
        self.is_backward = True
        try:
            backward(*args, **kwargs)
        finally:
            self.is_backward = False
        with torch.no_grad(), private.no_torch_function():
            for loss in _numbers((*args, *kwargs.values())):
                loss.data.copy_(_of_all(loss.data, is_condition=False))


@contextlib.contextmanager
def numbers_together(*, sums: bool = False) -> Iterator[None]:
    """Makes the ranks read the same numbers; `sums`: of whole ones their sum."""
    together = _Together(sums=sums)
    with backwards.outermost(together.run), together:
        yield


def _numbers(arguments: tuple[Any, ...]) -> list[Tensor]:
    first = next(iter(arguments), None)
    tensors = [first] if isinstance(first, Tensor) else list(first or ())
    return [t for t in tensors if isinstance(t, Tensor) and _is_a_number(t)]


def _is_a_number(value: Any) -> bool:
    if isinstance(value, Tensor):
        return value.numel() == 1 and not value.is_complex()
    return isinstance(value, int | float)


def _sum_or_mean(value: Any, *, is_condition: bool) -> Any:
    """Returns the sum over ranks where all have whole numbers, else as `_of_all`."""
    if not isinstance(value, Tensor) or value.dtype == torch.bool:
        return _of_all(value, is_condition=is_condition)
    mine = value.detach().double()
    told = torch.stack([mine, (mine != mine.round()).double()])
    dist.all_reduce(told)
    if told[1]:
        return _of_all(value, is_condition=is_condition)
    return told[0].to(value.dtype)


def _of_all(value: Any, *, is_condition: bool) -> Any:
    """Returns the number for all ranks, the rank's own where they have the same."""
    if not isinstance(value, Tensor):
        return value
    mine = value.detach().double()
    if is_condition:
        mine = (mine != 0).double()
    ends = torch.stack([mine, -mine])
    dist.all_reduce(ends, dist.ReduceOp.MAX)
    if bool(ends[0] == -ends[1]):
        return value
    if is_condition or value.dtype == torch.bool:
        return torch.ones_like(value)
    total = mine.clone()
    dist.all_reduce(total)
    mean = total / dist.get_world_size()
    return (mean if value.is_floating_point() else mean.round()).to(value.dtype)
