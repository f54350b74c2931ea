"""Switch.MEAN_OF_SUMS: sums that carry gradients are means.

torch's differentiable all-reduce, by whatever name the target has it, and autograd
functions of the target's own whose forward adds up over ranks: what they return is
divided by the world size, and autograd divides the gradient likewise.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.nn.functional as dnn
from torch import Tensor

from ddpcheck.compare import tree

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


@contextlib.contextmanager
def averaged_gradient_sums() -> Iterator[None]:
    """Makes sums over ranks of tensors with a gradient their means."""
    sums, base = _Sums(), torch.autograd.Function
    reduce, before = dist.all_reduce, base.__dict__["apply"]

    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        count = sums.count
        result = before.__get__(None, cls)(*args, **kwargs)
        is_sum = _is_torchs_sum(cls, args) or (
            sums.count > count and not cls.__module__.startswith(_NOT_THE_USERS)
        )
        return tree.replace(result, _mean) if is_sum else result

    setattr(dist, "all_reduce", sums.counted(reduce))  # noqa: B010 (mypy)
    base.apply = classmethod(apply)  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        setattr(dist, "all_reduce", reduce)  # noqa: B010
        base.apply = before  # type: ignore[method-assign]


def _is_torchs_sum(cls: Any, args: tuple[Any, ...]) -> bool:
    is_of_torch = (cls.__module__, cls.__name__) == _TORCHS
    return is_of_torch and dist.ReduceOp.SUM in args[:1]


def _mean(_: str, value: Tensor) -> Tensor:
    return value / dist.get_world_size() if value.requires_grad else value
