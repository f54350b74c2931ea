"""Whether the loss at one sample depends on others, output by output.

Some samples are changed, and the change of the loss's gradient at the outputs of the
rest is measured. Either half of the batch is changed, then every other shard: stacked
views couple samples that are far apart, pairs of neighbours those next to a shard's
border, and a threshold may be crossed only by the samples of one half.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from ddpcheck.compare import tree
from ddpcheck.diagnose.probes.evidence import Couplings
from ddpcheck.run.observe import countables
from ddpcheck.run.process import isolation

Grads = dict[tuple[int, str], Tensor | None]  # by (micro-batch, key)
Perturb = Callable[[str, Tensor], Tensor]
# (perturb, batch) -> gradients at the cut outputs
Pass = Callable[[Perturb, Any], Grads]
# Where a key's tensor has its samples: (dimension, blocks of all samples one after the
# other, as two views of a batch are concatenated).
Places = Callable[[str, Tensor], tuple[int, int]]
# (values, which rows, the dimension of rows, key) -> values with these rows changed
Change = Callable[[Tensor, Tensor, int, str], Tensor]
_NUDGE = 0.05  # of an output's own spread
_LITTLE = 1e-4  # of a nudge
_NOTHING = 1e-9  # of the largest change
_FAR = 1e4  # times a target
_GROWS = 100  # times what targets that are 1.5 times as large change, or all there is
_CLEAR = 0.01  # of a change: more is not by one factor
_BLOCKS = 2  # in a shard


def measure(
    run: Pass,
    grads: Grads,
    places: Places,
    batch: Any,
    world_size: int,
) -> Couplings:
    """Returns the couplings of a loss.

    Args:
        run: one pass on the first pass's values, perturbed, and a batch.
        grads: of the first pass.
        places: where the samples of a key's tensor are.
        batch: the global batch.
        world_size: number of shards.
    """
    parts = [_Part(2, _is_second_half), _Part(2, _is_first_half)]
    if world_size > 2 and _has_one_batch(grads):  # noqa: PLR2004 (halves are the shards)
        parts.append(_Part(world_size, _is_odd_shard))
    return _largest(_Trial(run, grads, places, part).of(batch) for part in parts)


@dataclass(frozen=True, slots=True)
class _Part:
    """The samples that are changed: of so many rows, those for which this is True."""

    shards: int
    choose: Callable[[int, int], Tensor]

    def rows(self, size: int, blocks: int = 1) -> Tensor:
        """Returns whether each row is changed; a bool tensor (size,)."""
        return self.choose(size // blocks, self.shards).repeat(blocks)

    def in_turn(self, leaf: Tensor) -> Tensor:
        """Returns the samples with each of these in the place of the next one."""
        rows = self.rows(len(leaf)).nonzero().flatten()
        order = torch.arange(len(leaf))
        order[rows] = rows.roll(1)
        return leaf[order]

    def along(self, value: Tensor, at: int, blocks: int = 1) -> Tensor:
        """Returns the same, in a shape that spreads over `value`."""
        shape = [1] * value.dim()
        shape[at] = -1
        return self.rows(value.shape[at], blocks).view(shape)


def _is_second_half(size: int, _: int) -> Tensor:
    return torch.arange(size) >= size // 2


def _is_first_half(size: int, _: int) -> Tensor:
    return torch.arange(size) < size // 2


def _is_odd_shard(size: int, shards: int) -> Tensor:
    parts = torch.arange(size).tensor_split(shards)
    return torch.cat([torch.full_like(p, i % 2) for i, p in enumerate(parts)]).bool()


def _has_one_batch(grads: Grads) -> bool:
    """Returns whether there are no micro-batches, whose shards are others."""
    return all(number == 0 for number, _ in grads)


@dataclass(frozen=True, slots=True)
class _Trial:
    """The changes of the gradient if this part of the samples is changed."""

    run: Pass
    grads: Grads
    places: Places
    part: _Part

    def of(self, batch: Any) -> Couplings:
        """Returns the couplings that changes of outputs and of targets show."""
        nudged, copied, turned = (
            self._changed(change, batch)
            for change in (_nudged(_NUDGE), _copied, _turned)
        )
        little = _nudged(_NUDGE * _LITTLE)
        slope = self._relative(self._changed(little, batch, is_slope=True))
        return Couplings(
            nudged=self._relative(nudged),
            slope={k: v / _LITTLE for k, v in slope.items()},
            copied=_larger(self._relative(copied), self._relative(turned)),
            unscaled=self._unscaled([nudged, copied, turned]),
            targets=self._of_targets(batch) if _has_one_batch(self.grads) else {},
        )

    def _changed(
        self, change: Change, batch: Any, *, is_slope: bool = False
    ) -> dict[str, Tensor]:
        """Returns how the gradient at the other samples changes, flat, by key.

        `is_slope`: no slope is one by what is as good as data, a mask.
        """
        trained = {key for _, key in self.grads}

        def perturb(key: str, value: Tensor) -> Tensor:
            if is_slope and key not in trained:
                return value
            at, blocks = self.places(key, value)
            return change(value, self.part.along(value, at, blocks), at, key)

        tops = largest_gradients(self.grads)
        return {
            key: d
            for key, d in (self._moved(perturb, batch) or {}).items()
            if d.numel() and tops.get(key) and bool(d.isfinite().all())
        }

    def _relative(self, changes: dict[str, Tensor]) -> dict[str, float]:
        tops = largest_gradients(self.grads)
        return {key: float(d.abs().max()) / tops[key] for key, d in changes.items()}

    def _unscaled(self, found: list[dict[str, Tensor]]) -> dict[str, float]:
        """Returns what changes are besides one factor of some of the gradient."""
        nothing = {
            place: None if grad is None else torch.zeros_like(grad)
            for place, grad in self.grads.items()
        }
        before = _differences(nothing, self.grads, self.places, self.part)
        worst: dict[str, float] = {}
        for changes in found:
            left = {
                key: _besides_a_factor(d, before[key]) for key, d in changes.items()
            }
            worst = _larger(worst, left)
        return worst

    def _moved(self, perturb: Perturb, batch: Any) -> dict[str, Tensor] | None:
        try:
            found = self.run(perturb, batch)
        except Exception:  # noqa: BLE001 (a loss may refuse perturbed outputs)
            return None
        return _differences(self.grads, found, self.places, self.part)

    def _of_targets(self, batch: Any) -> dict[str, float]:
        size = countables.samples(batch)

        def moved(change: Callable[[Tensor], Tensor]) -> dict[str, Tensor]:
            changed = tree.replace(
                batch, lambda _, t: change(t) if t.dim() and len(t) == size else t
            )
            return self._moved(lambda _, value: value, changed) or {}

        def reals(change: Callable[[Tensor], Tensor]) -> dict[str, Tensor]:
            return moved(lambda t: _reals(t, self.part, change))

        # Not by a shift alone, which leaves the spread of values as it is.
        shifted, scaled = reals(lambda t: 0.8 * t + 1), reals(lambda t: 1.5 * t)
        tops = largest_gradients(self.grads)
        apart = _apart(shifted, scaled, tops)
        if any(bool(change.any()) for change in scaled.values()):
            apart = _larger(apart, _grown(scaled, reals(lambda t: _FAR * t), tops))
        if not self._has_rows_for_all(size):
            return apart
        # Counts stay where rows change places, of classes and of masks, too.
        return _larger(apart, self._besides_factors(moved(self.part.in_turn)))

    def _has_rows_for_all(self, size: int) -> bool:
        """Returns whether a step gives all samples on: none is chosen by its values."""
        known = ((key, g) for (_, key), g in self.grads.items() if g is not None)
        return all(g.shape[self.places(key, g)[0]] % size == 0 for key, g in known)

    def _besides_factors(self, changes: dict[str, Tensor]) -> dict[str, float]:
        """Returns how large changes are, but for those by one factor."""
        tops = largest_gradients(self.grads)
        known = {k: d for k, d in changes.items() if tops.get(k) and d.numel()}
        left = self._unscaled([known])
        return {
            key: size if left[key] > _CLEAR else 0.0
            for key, size in self._relative(known).items()
        }


def _largest(found: Iterable[Couplings]) -> Couplings:
    """Returns the largest of each number, for every key that any of them has."""
    every = list(found)
    joined: dict[str, dict[str, float]] = {}
    for field in fields(Couplings):
        joined[field.name] = {}
        for one in every:
            mine = getattr(one, field.name)
            joined[field.name] = _larger(joined[field.name], mine)
    return Couplings(**joined)


def largest_gradients(grads: Grads) -> dict[str, float]:
    """Returns the largest absolute entry by key, of all micro-batches."""
    tops: dict[str, float] = {}
    for (_, key), grad in grads.items():
        if grad is not None and grad.numel():
            tops[key] = max(tops.get(key, 0.0), float(grad.abs().max()))
    return tops


def _differences(
    grads: Grads, found: Grads, places: Places, part: _Part
) -> dict[str, Tensor]:
    """Returns the change of the gradient at the samples that were left alone, flat."""
    parts: dict[str, list[Tensor]] = {}
    for place, grad in grads.items():
        other = found.get(place)
        if grad is None or other is None:
            continue
        at, blocks = places(place[1], grad)
        kept = (~part.rows(grad.shape[at], blocks)).nonzero().flatten()
        change = other.index_select(at, kept) - grad.index_select(at, kept)
        parts.setdefault(place[1], []).append(change.reshape(-1))
    return {key: torch.cat(changes) for key, changes in parts.items()}


def _besides_a_factor(change: Tensor, before: Tensor) -> float:
    """Returns what a change is besides c * before where it is any, relative.

    Infinite where all of it vanishes: others decide what is chosen, and divide nothing.
    """
    d, g = change.double(), before.double()
    top = float(d.abs().max())
    moved = (d.abs() > _NOTHING * top) & (d.abs() > _rounding(change) * g.abs())
    if not bool(moved.any()):
        return 0.0
    d, g = d[moved], g[moved]
    square = float(torch.dot(g, g))
    factor = float(torch.dot(d, g)) / square if square else 0.0
    if factor <= _NOTHING - 1:
        return math.inf
    return float((d - factor * g).abs().max()) / top


def _rounding(change: Tensor) -> float:
    """Returns the change, relative to a gradient, that may be rounding of its dtype."""
    return max(_NOTHING, 10 * torch.finfo(change.dtype).eps)


def _nudged(size: float) -> Change:
    """Returns what adds noise of this size, in spreads of the values."""

    def change(value: Tensor, rows: Tensor, _: int, key: str) -> Tensor:
        generator = torch.Generator().manual_seed(len(key))
        noise = torch.randn(value.shape, generator=generator, dtype=torch.float64)
        wide = value.double()
        spread = wide.std() if value.numel() > 1 else wide.abs().sum()
        return value + (noise * rows * spread * size).to(value.dtype)

    return change


def _copied(value: Tensor, rows: Tensor, at: int, _: str) -> Tensor:
    """Makes these rows copies of the first of the others.

    Values stay in their range, and whatever counts or sorts them changes.
    """
    first = int(rows.flatten().long().argmin())
    return torch.where(rows, value.narrow(at, first, 1), value)


def _turned(value: Tensor, rows: Tensor, at: int, _: str) -> Tensor:
    """Moves these rows' entries on by one: another class is the largest."""
    if value.dim() < 2 or at == value.dim() - 1:  # noqa: PLR2004
        return value
    return torch.where(rows, value.roll(1, -1), value)


def _larger(first: dict[str, float], second: dict[str, float]) -> dict[str, float]:
    return {
        key: max(first.get(key, 0.0), second.get(key, 0.0))
        for key in {**first, **second}
    }


def _reals(leaf: Tensor, part: _Part, change: Callable[[Tensor], Tensor]) -> Tensor:
    """Changes the real numbers among the targets; masks and classes stay."""
    if not leaf.is_floating_point():
        return leaf
    return torch.where(part.along(leaf, 0), change(leaf), leaf)


def _grown(
    near: Mapping[str, Tensor], far: Mapping[str, Tensor], tops: dict[str, float]
) -> dict[str, float]:
    """Returns the change by key where it grows with the targets that others have.

    What divides by them takes a gradient away, and no more than all of it.
    """
    found = {}
    for key in set(near) & set(far):
        if not near[key].numel() or not tops.get(key):
            continue
        change, most = (float(d[key].double().abs().max()) for d in (near, far))
        if math.isfinite(most) and most > _GROWS * max(change, tops[key]):
            found[key] = change / tops[key]
    return found


def _apart(
    first: Mapping[str, Tensor], second: Mapping[str, Tensor], tops: dict[str, float]
) -> dict[str, float]:
    """Returns what two changes have in no common direction, by key."""
    found = {}
    for key in set(first) & set(second):
        a, b = first[key].double(), second[key].double()
        if not a.numel() or not tops.get(key):
            continue
        if float(b.abs().max()) <= _rounding(second[key]) * tops[key]:
            # But for rounding none: that says nothing of the other's direction.
            found[key] = 0.0
            continue
        left = a - b * (float(torch.dot(a, b)) / float(torch.dot(b, b)))
        found[key] = float(left.abs().max()) / tops[key]
    return found


def measure_order(
    run: Pass, grads: Grads, places: Places, batch: Any, world_size: int, seed: int
) -> dict[str, float]:
    """Returns the largest change by key, relative to the largest gradient.

    Empty where it cannot be told: of shards that have no halves, and where random
    numbers are drawn, which follow the place and not the sample.

    Args:
        run: one pass on the first pass's values, perturbed, and a batch.
        grads: of the first pass.
        places: where the samples of a key's tensor are.
        batch: the global batch.
        world_size: number of shards.
        seed: of every pass.
    """
    samples, blocks = countables.samples(batch), _BLOCKS * world_size
    if world_size == 1 or samples % blocks:
        return {}

    def reordered(value: Tensor, at: int, times: int) -> Tensor:
        size = value.shape[at] // times  # of one view of all samples
        return value.index_select(at, _order(size, times, blocks))

    def perturb(key: str, value: Tensor) -> Tensor:
        return reordered(value, *places(key, value))

    other = countables.part(batch, samples, _order(samples, 1, blocks))
    try:
        found = run(perturb, other)
    except Exception:  # noqa: BLE001 (a loss may refuse another order)
        return {}
    return {} if _draws(seed) else _changes(grads, found, perturb)


def _order(size: int, times: int, blocks: int) -> Tensor:
    """Returns the rows in their new order: every other block before its neighbour.

    Not the first block, nor the last: shards that change places are no other order to
    what goes round, the neighbour of the last sample being the first.
    """
    parts = list(torch.arange(size).tensor_split(blocks))
    for i in range(1, blocks - 1, 2):
        parts[i], parts[i + 1] = parts[i + 1], parts[i]
    once = torch.cat(parts)
    return torch.cat([once + i * size for i in range(times)])


def _draws(seed: int) -> bool:
    """Returns whether the pass that has just ended drew random numbers."""
    state = torch.get_rng_state()
    isolation.seed_everything(seed)
    return not torch.equal(state, torch.get_rng_state())


def _changes(grads: Grads, found: Grads, perturb: Any) -> dict[str, float]:
    tops, worst = largest_gradients(grads), dict[str, float]()
    for (number, key), grad in grads.items():
        other = found.get((number, key))
        if grad is None or other is None or not tops.get(key):
            continue
        change = float((other - perturb(key, grad)).abs().max()) / tops[key]
        if change == change:  # noqa: PLR0124 (no NaN)
            worst[key] = max(worst.get(key, 0.0), change)
    return worst
