"""Switch.BLOCK_ORDER: gathered blocks stand as in one process.

A rank that gathers the views of its samples one after the other gets them rank by rank,
all views of one rank before those of the next. One process has them view by view.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


@contextlib.contextmanager
def blocks_together(rows: Callable[[], int]) -> Iterator[None]:
    """Lets gathers of several rows per sample return block after block of all ranks.

    What carries gradients keeps them: an autograd function that gathers is called as
    it is, and what it returns is put in order.

    Args:
        rows: gives the number of samples on this rank.
    """
    gathers = _Gathers(rows)
    with contextlib.ExitStack() as stack:
        for name, make in {
            "all_gather": gathers.into_list,
            "all_gather_into_tensor": gathers.into_tensor,
        }.items():
            before = getattr(dist, name)
            setattr(dist, name, make(before))
            stack.callback(setattr, dist, name, before)
        stack.enter_context(gathers.in_functions())
        yield


class _Gathers:
    def __init__(self, rows: Callable[[], int]) -> None:
        self._rows = rows
        self._depth = 0  # of autograd functions
        self._calls = 0  # within them

    def into_list(self, gather: Any) -> Any:
        def all_gather(
            tensors: list[Tensor], tensor: Tensor, *args: Any, **kwargs: Any
        ) -> Any:
            result = gather(tensors, tensor, *args, **kwargs)
            if self._is_own_call(result):
                whole = self._ordered(torch.cat([t.detach() for t in tensors]))
                parts = whole.chunk(len(tensors))
                for target, part in zip(tensors, parts, strict=True):
                    target.data.copy_(part)
            return result

        return all_gather

    def into_tensor(self, gather: Any) -> Any:
        def all_gather_into_tensor(
            whole: Tensor, tensor: Tensor, *args: Any, **kwargs: Any
        ) -> Any:
            result = gather(whole, tensor, *args, **kwargs)
            if self._is_own_call(result):
                flat = whole.detach().reshape(-1, *tensor.shape[1:])
                whole.data.copy_(self._ordered(flat).view_as(whole))
            return result

        return all_gather_into_tensor

    def _is_own_call(self, work: Any) -> bool:
        """Returns whether nobody puts the rows in order later; they are there then."""
        self._calls += 1
        if work is not None:
            work.wait()
        return not self._depth

    @contextlib.contextmanager
    def in_functions(self) -> Iterator[None]:
        base = torch.autograd.Function
        before = base.__dict__["apply"]

        def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
            calls = self._calls
            self._depth += 1
            try:
                result = before.__get__(None, cls)(*args, **kwargs)
            finally:
                self._depth -= 1
            gathered = self._calls > calls and not self._depth
            return self._of_function(result) if gathered else result

        base.apply = classmethod(apply)  # type: ignore[method-assign,assignment]
        try:
            yield
        finally:
            base.apply = before  # type: ignore[method-assign]

    def _of_function(self, result: Any) -> Any:
        """Returns a part for each rank, all parts as one, or stacked, in order."""
        world = dist.get_world_size()
        if isinstance(result, tuple | list):
            if len(result) != world or not all(isinstance(t, Tensor) for t in result):
                return result
            return tuple(self._ordered(torch.cat(list(result))).chunk(world))
        if not isinstance(result, Tensor) or not result.dim():
            return result
        if len(result) == world and result.dim() > 1:
            return self._ordered(result.flatten(0, 1)).view_as(result)
        return self._ordered(result)

    def _ordered(self, whole: Tensor) -> Tensor:
        """Returns rows as (blocks, W, samples) that are (W, blocks, samples)."""
        world, own = dist.get_world_size(), self._rows()
        blocks, rest = divmod(len(whole), world * own) if own else (0, 1)
        if rest or blocks < 2:  # noqa: PLR2004
            return whole
        shaped = whole.reshape(world, blocks, own, *whole.shape[1:])
        return shaped.transpose(0, 1).reshape(whole.shape)
