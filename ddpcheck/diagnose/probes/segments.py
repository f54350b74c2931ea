"""Several kinds of rows in one tensor, one after the other.

A graph's messages are those of its edges, then those of its nodes' loops: the rows of a
sample lie together in each kind alone, and no blocks of all samples follow each other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

SAME = 1e-6  # relative; a statistic of other rows differs by far more
_MOST_KINDS = 4


def part(
    mine: Tensor, whole: Tensor, rows: tuple[int, int, int], dim: int
) -> Callable[[Tensor], Tensor] | None:
    """Returns the part of a whole that a shard's tensor is, None where it is none.

    Args:
        mine: of the shard.
        whole: of all samples.
        rows: (first sample, samples of the shard, samples in all).
        dim: that of the rows, as many for each sample.
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
    """`counts_anew`: places in a batch, which a shard counts from its own first one."""

    mine: Tensor  # (rows, values), in float64
    whole: Tensor
    rows: tuple[int, int, int]
    counts_anew: bool

    def lengths(self, done: int, left: int, more: int) -> list[int] | None:
        """Returns how many rows a sample has of each kind after the first `done`."""
        if not left:
            return []
        for length in self._likely(done, left) if more else ():
            mine, whole = self._bounds(done, torch.tensor([length]))
            a = self.mine[int(mine[0]) : int(mine[1]) + 1]
            b = self.whole[int(whole[0]) : int(whole[1]) + 1]
            if bool(self._alike(a, b).all()):
                rest = self.lengths(done + length, left - length, more - 1)
                if rest is not None:
                    return [length, *rest]
        return None

    def _likely(self, done: int, left: int) -> list[int]:
        """Returns the lengths, largest first, whose first and last rows are alike."""
        lengths = torch.arange(left, 0, -1)
        mine, whole = self._bounds(done, lengths)
        ends = self._alike(
            self.mine[mine.clamp(max=len(self.mine) - 1)],
            self.whole[whole.clamp(max=len(self.whole) - 1)],
        )
        found: list[int] = lengths[ends.view(2, -1).all(0)].tolist()
        return found

    def _bounds(self, done: int, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the first and then the last rows of a kind, of each length."""
        start, size, total = self.rows
        first = torch.full_like(lengths, size * done)
        mine = torch.cat([first, first + size * lengths - 1])
        begin = total * done + start * lengths
        return mine, torch.cat([begin, begin + size * lengths - 1])

    def _alike(self, mine: Tensor, whole: Tensor) -> Tensor:
        """Returns whether rows are the same, (rows,), but for where places begin."""
        apart = whole - mine
        if self.counts_anew:
            start, _, total = self.rows
            begin = (self.whole.max() + 1) * start // total
            return ((apart == 0) | (apart == begin)).all(1)
        return apart.abs().amax(1) <= SAME * self.whole.abs().max()
