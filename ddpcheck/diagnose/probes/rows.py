"""Which part of a tensor of all samples a shard's tensor is.

Rows of samples may lie one after the other, in blocks of all samples, or in several
kinds: the messages of a graph are those of its edges, then those of its nodes' loops.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

SAME = 1e-6  # relative; a statistic of other rows differs by far more
_MOST_KINDS = 4
_Rows = tuple[int, int, int]  # (first sample, samples of the shard, samples in all)


def part(
    whole: tuple[int, ...], mine: tuple[int, ...], rows: _Rows
) -> list[Callable[[Tensor], Tensor]]:
    """Returns functions that take a part of the whole with the shard's shape.

    A dimension of k * samples may hold k values per sample, or k blocks of all samples
    (two views of a batch, concatenated): both are returned. Empty if no part fits.

    Args:
        whole: shape of the tensor of all samples.
        mine: shape of the shard's tensor.
        rows: (first sample, samples of the shard, samples in all).
    """
    start, size, total = rows
    dims = (
        [d for d in range(len(whole)) if whole[d] != mine[d]]
        if len(whole) == len(mine)
        else []
    )
    if len(dims) != 1:
        return []
    dim = dims[0]
    groups, rest = divmod(whole[dim], total)
    if rest or groups * size != mine[dim]:
        return []

    def contiguous(t: Tensor) -> Tensor:
        return t.narrow(dim, start * groups, size * groups)

    def blocks(t: Tensor) -> Tensor:
        split = t.unflatten(dim, (groups, total))
        return split.narrow(dim + 1, start, size).flatten(dim, dim + 1)  # type: ignore[no-any-return]

    return [contiguous, blocks] if groups > 1 else [contiguous]


def closest(
    actual: Tensor, reference: Tensor, rows: _Rows
) -> tuple[Callable[[Tensor], Tensor] | None, float]:
    """Returns the part of the reference that is closest to `actual`, and the distance.

    The distance is max |a - b| / max |b|.
    """
    best: tuple[Callable[[Tensor], Tensor] | None, float] = (None, float("inf"))
    ways = part(tuple(reference.shape), tuple(actual.shape), rows)
    for take in ways:
        diff = distance(actual, take(reference), scale=reference)
        if best[0] is None or diff < best[1]:
            best = take, diff
    if best[1] <= SAME or len(ways) < 2:  # noqa: PLR2004 (a row per sample)
        return best
    found = _part_of_kinds(actual, reference, rows, _dim(actual, reference))
    return best if found is None else (found, 0.0)


def num_blocks(mine: Tensor, whole: Tensor, rows: _Rows) -> int:
    """Returns how many blocks of all samples lie one after the other in `whole`.

    It is 1 if the rows of a sample lie together, or if the shard fits both ways.
    """
    ways = part(tuple(whole.shape), tuple(mine.shape), rows)
    if len(ways) < 2:  # noqa: PLR2004 (a row per sample)
        return 1
    together, blocks = (distance(mine, take(whole), scale=whole) for take in ways)
    return whole.shape[_dim(mine, whole)] // rows[2] if blocks < together else 1


def _dim(mine: Tensor, whole: Tensor) -> int:
    """Returns the first dimension in which the sizes differ."""
    sizes = zip(whole.shape, mine.shape, strict=True)
    return next(d for d, (a, b) in enumerate(sizes) if a != b)


def distance(actual: Tensor, expected: Tensor, *, scale: Tensor | None = None) -> float:
    """Returns max |actual - expected| / max |scale|; 0 for two empty tensors."""
    if not actual.numel():
        return 0.0
    diff = _largest(actual.detach().double() - expected.detach().double())
    top = _largest((expected if scale is None else scale).detach().double())
    return diff / top if top > 0 else diff


def _largest(tensor: Tensor) -> float:
    return float(tensor.abs().nan_to_num(0.0).max())


def _part_of_kinds(
    mine: Tensor, whole: Tensor, rows: _Rows, dim: int
) -> Callable[[Tensor], Tensor] | None:
    """Returns a function that takes the shard's rows of each kind, None if none fits.

    The rows of a sample lie together in each kind. `dim`: of the rows.
    """
    start, size, total = rows
    if mine.is_complex() or not whole.numel():
        return None
    flat = [
        t.detach().movedim(dim, 0).reshape(t.shape[dim], -1).double()
        for t in (mine, whole)
    ]
    counts = not mine.is_floating_point()
    search = _Search(flat[0], flat[1], rows, counts_anew=counts)
    found = search.lengths(0, whole.shape[dim] // total, _MOST_KINDS)
    if found is None:
        return None

    def take(t: Tensor) -> Tensor:
        kinds = t.split([total * length for length in found], dim)
        parts = [
            kind.narrow(dim, start * length, size * length)
            for kind, length in zip(kinds, found, strict=True)
        ]
        return torch.cat(parts, dim)

    return take


@dataclass(frozen=True, slots=True)
class _Search:
    """Searches for the number of rows that a sample has of each kind.

    `counts_anew`: values are positions in the batch, which a shard counts from 0.
    """

    mine: Tensor  # (rows, values), in float64
    whole: Tensor
    rows: _Rows
    counts_anew: bool

    def lengths(self, done: int, left: int, more: int) -> list[int] | None:
        """Returns the rows per sample of each kind, after `done` rows per sample.

        Args:
            done: rows per sample of the kinds before.
            left: rows per sample that are left.
            more: largest number of kinds that may follow.
        """
        if not left:
            return []
        for length in self._likely(done, left) if more else ():
            mine, whole = self._bounds(done, torch.tensor([length]))
            a = self.mine[int(mine[0]) : int(mine[1]) + 1]
            b = self.whole[int(whole[0]) : int(whole[1]) + 1]
            if bool(self._equal(a, b).all()):
                rest = self.lengths(done + length, left - length, more - 1)
                if rest is not None:
                    return [length, *rest]
        return None

    def _likely(self, done: int, left: int) -> list[int]:
        """Returns the lengths with equal first and last rows, the largest first."""
        lengths = torch.arange(left, 0, -1)
        mine, whole = self._bounds(done, lengths)
        ends = self._equal(
            self.mine[mine.clamp(max=len(self.mine) - 1)],
            self.whole[whole.clamp(max=len(self.whole) - 1)],
        )
        found: list[int] = lengths[ends.view(2, -1).all(0)].tolist()
        return found

    def _bounds(self, done: int, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the first, then the last rows of a kind, for each length."""
        start, size, total = self.rows
        first = torch.full_like(lengths, size * done)
        mine = torch.cat([first, first + size * lengths - 1])
        begin = total * done + start * lengths
        return mine, torch.cat([begin, begin + size * lengths - 1])

    def _equal(self, mine: Tensor, whole: Tensor) -> Tensor:
        """Returns whether rows are equal, up to where positions are counted from."""
        apart = whole - mine
        if self.counts_anew:
            start, _, total = self.rows
            begin = (self.whole.max() + 1) * start // total
            return ((apart == 0) | (apart == begin)).all(1)
        return apart.abs().amax(1) <= SAME * self.whole.abs().max()
