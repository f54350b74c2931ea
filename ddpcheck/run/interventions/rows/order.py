"""The order of rows that ranks gather, and labels that count rows.

BLOCK_ORDER: a rank that gathers several views of its samples, one after the other, gets
them rank by rank, all views of one rank before those of the next. The single process
has them view by view.

OffsetLabels: labels that number the rank's own rows count from the rank's first row.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ddpcheck.compare.tree import shard_range
from ddpcheck.run.intervention import OffsetLabels
from ddpcheck.run.interventions.acts import Acts
from ddpcheck.run.process.replacing import all_replaced, functions_run_by, replaced


@contextlib.contextmanager
def blocks_together(rows: Callable[[], int]) -> Iterator[None]:
    """Makes gathers of several rows per sample return block after block of all ranks.

    Gradients are preserved: an autograd function that gathers is called unchanged, and
    its result is put in order.

    Args:
        rows: returns the number of samples on this rank.
    """
    gathers = _Gathers(rows)
    with (
        replaced(
            dist,
            all_gather=gathers.into_list(dist.all_gather),
            all_gather_into_tensor=gathers.into_tensor(dist.all_gather_into_tensor),
        ),
        functions_run_by(gathers.applied),
    ):
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
        """Waits for the rows; returns whether this call has to order them itself."""
        self._calls += 1
        if work is not None:
            work.wait()
        return not self._depth

    def applied(self, apply: Any, _: Any, *args: Any, **kwargs: Any) -> Any:
        """Puts in order what an autograd function returns that gathers."""
        calls = self._calls
        self._depth += 1
        try:
            result = apply(*args, **kwargs)
        finally:
            self._depth -= 1
        gathered = self._calls > calls and not self._depth
        return self._of_function(result) if gathered else result

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


@contextlib.contextmanager
def offset_by_rank(
    rows: Callable[[], int], model: nn.Module, fix: OffsetLabels, acts: Acts
) -> Iterator[None]:
    """Makes labels of the rank's rows start after those of lower ranks.

    A `torch.arange` of that length, from 0 by 1: the labels of a loss against gathered
    rows. Outside the model's forward, where no positions are counted, one of several
    rows per sample too. And the diagonal of a matrix of own rows by all ranks' rows, as
    `torch.eye` makes it, or as it is read.

    Args:
        rows: returns the number of samples on this rank.
        model: its forward may number its own rows, to select from each.
        fix: says whether row numbers in its forward are labels too.
        acts: notes the lines that make the labels.
    """
    depth = 0
    shards = _Shards(rows, fix, acts)

    def enter(*_: object) -> None:
        nonlocal depth
        depth += 1

    def leave(*_: object) -> None:
        nonlocal depth
        depth -= 1

    def has_labels(made: Tensor) -> bool:
        own = rows()
        return (
            own > 0
            and _counts(made)
            and (depth == 0 or (fix.within_forward and len(made) == own))
            and len(made) % own == 0
        )

    owners: tuple[Any, ...] = (torch, Tensor)
    diagonals = {
        (owner, name): _diagonal(getattr(owner, name), shards)
        for owner in owners
        for name in ("diag", "diagonal")
    }
    with (
        nn.Module.register_forward_pre_hook(model, enter),
        nn.Module.register_forward_hook(model, leave, always_call=True),
        replaced(torch, arange=_counting_on(torch.arange, has_labels, shards)),
        replaced(torch, eye=_eye(torch.eye, shards)),
        all_replaced(diagonals),
    ):
        yield


def _counts(made: Tensor) -> bool:
    """Returns whether these are whole numbers from 0, by 1."""
    return (
        made.dim() == 1
        and len(made) > 0
        and not made.is_floating_point()
        and int(made[0]) == 0
        and int(made[-1]) == len(made) - 1
    )


class _Shards:
    """How many samples each rank has, and where among all of them its own begin."""

    def __init__(self, rows: Callable[[], int], fix: OffsetLabels, acts: Acts) -> None:
        self._rows, self._samples, self._acts = rows, fix.samples, acts

    def first(self, count: int) -> int:
        """Returns the number of the first of `count` own rows among all; notes it."""
        self._acts.note(OffsetLabels.__name__)
        own, sizes = self._rows(), self._of_ranks()
        return sum(sizes[: dist.get_rank()]) * (count // own)

    def is_by_all(self, n: int, m: int) -> bool:
        """Returns whether a matrix has a row of each own sample, a column of all."""
        own = self._rows()
        if own <= 0 or n <= 0 or n % own:
            return False
        return m == sum(self._of_ranks()) * (n // own)

    def _of_ranks(self) -> list[int]:
        own, world = self._rows(), dist.get_world_size()
        sizes = [shard_range(self._samples, rank, world)[1] for rank in range(world)]
        return sizes if sizes[dist.get_rank()] == own else [own] * world


def _counting_on(
    plain: Any, has_labels: Callable[[Tensor], bool], shards: _Shards
) -> Any:
    def arange(*args: Any, **kwargs: Any) -> Any:
        made = plain(*args, **kwargs)
        return made + shards.first(len(made)) if has_labels(made) else made

    return arange


def _eye(plain: Any, shards: _Shards) -> Any:
    def eye(n: int, m: int | None = None, **kwargs: Any) -> Any:
        if m is None or not shards.is_by_all(n, m):
            return plain(n, n if m is None else m, **kwargs)
        first = shards.first(n)
        return plain(m, m, **kwargs)[first : first + n]

    return eye


def _diagonal(plain: Any, shards: _Shards) -> Any:
    def diagonal(matrix: Any, *args: Any, **kwargs: Any) -> Any:
        if args or kwargs or matrix.dim() != 2:  # noqa: PLR2004 (a batch of them)
            return plain(matrix, *args, **kwargs)
        n, m = matrix.shape
        return plain(matrix, shards.first(n) if shards.is_by_all(n, m) else 0)

    return diagonal
