"""Which rows of a tensor of all samples a shard's tensor holds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

SAME = 1e-6  # relative; a statistic of other rows differs by far more
_MOST_KINDS = 4


def part(
    whole: tuple[int, ...], mine: tuple[int, ...], rows: tuple[int, int, int]
) -> list[Callable[[Tensor], Tensor]]:
    """Returns the ways in which a shard's tensor may be a part of the whole.

    Args:
        whole: shape in the reference.
        mine: shape on the rank.
        rows: (first sample, samples of the shard, samples in all).

    A dimension of k * samples may hold k values per sample, or k blocks of all
    samples (two views of a batch, concatenated): both are returned. None fits: [].
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
    actual: Tensor,
    reference: Tensor,
    rows: tuple[int, int, int],
) -> tuple[Callable[[Tensor], Tensor] | None, float]:
    """Returns the part of the reference that `actual` is closest to, and how close.

    The distance is max |a - b| over max |b|.
    """
    best: tuple[Callable[[Tensor], Tensor] | None, float] = (None, float("inf"))
    ways = part(tuple(reference.shape), tuple(actual.shape), rows)
    for take in ways:
        diff = distance(actual, take(reference), scale=reference)
        if best[0] is None or diff < best[1]:
            best = take, diff
    if best[1] <= SAME or len(ways) < 2:  # noqa: PLR2004 (a row per sample)
        return best
    sizes = zip(reference.shape, actual.shape, strict=True)
    dim = next(d for d, (a, b) in enumerate(sizes) if a != b)
    found = _part_of_kinds(actual, reference, rows, dim)
    return best if found is None else (found, 0.0)


def num_blocks(mine: Tensor, whole: Tensor, rows: tuple[int, int, int]) -> int:
    """Returns how many blocks of all samples lie one after the other in `whole`.

    1 where the rows of a sample lie together, and where the shard does not tell.
    """
    ways = part(tuple(whole.shape), tuple(mine.shape), rows)
    if len(ways) < 2:  # noqa: PLR2004 (a row per sample)
        return 1
    together, blocks = (distance(mine, take(whole), scale=whole) for take in ways)
    differ = (
        a // rows[2] for a, b in zip(whole.shape, mine.shape, strict=True) if a != b
    )
    return next(differ) if blocks < together else 1


def distance(actual: Tensor, expected: Tensor, *, scale: Tensor | None = None) -> float:
    """Returns max |actual - expected| over max |scale|; 0 for two empty tensors."""
    if not actual.numel():
        return 0.0
    a, b = actual.detach().double(), expected.detach().double()
    diff = float((a - b).abs().nan_to_num(0.0).max())
    top = float(
        (expected if scale is None else scale)
        .detach()
        .double()
        .abs()
        .nan_to_num(0.0)
        .max()
    )
    return diff / top if top > 0 else diff


def _part_of_kinds(
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
