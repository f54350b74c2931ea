"""Whether the loss at one sample depends on other samples, for each cut output.

`measure` changes some samples and compares the gradient of the loss at the outputs of
the samples that were left alone. Changed are each half of the batch, then every other
shard. Stacked views couple samples that are far apart, pairs of neighbours couple
samples at a shard's border, and only the samples of one half may cross a threshold.

`measure_order` swaps blocks of samples and compares each sample's gradient.
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
# (key, the value of the first pass) -> the changed value
Perturb = Callable[[str, Tensor], Tensor]
# (perturb, batch) -> gradients at the cut outputs
Pass = Callable[[Perturb, Any], Grads]
# (key, tensor) -> (dimension of the samples, number of blocks of all samples in it: two
# views of a batch, concatenated, are two blocks)
Places = Callable[[str, Tensor], tuple[int, int]]
# (values, whether each row is changed, dimension of the rows, key) -> changed values
Change = Callable[[Tensor, Tensor, int, str], Tensor]

_NUDGE = 0.05  # times the standard deviation of an output
_LITTLE = 1e-4  # times a nudge
_NOTHING = 1e-9  # times the largest change
_FAR = 1e4  # times a target
_UNEVEN = 0.01  # times a target, at most: few cross a threshold or another target
# A coupling grows without bound if targets times `_FAR` change the gradient by so many
# times what targets times 1.5 change, or what the gradient is.
_GROWS = 100
_CLEAR = 0.01  # largest residual, relative to a change, of one factor
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
        run: does one pass with the first pass's values, perturbed, on a batch.
        grads: of the first pass.
        places: where a tensor has its samples.
        batch: the global batch.
        world_size: number of shards.
    """
    parts = [_Part(2, _is_second_half), _Part(2, _is_first_half)]
    if world_size > 2 and _has_one_batch(grads):  # noqa: PLR2004 (halves are the shards)
        parts.append(_Part(world_size, _is_odd_shard))
    return _largest(_Trial(run, grads, places, part).of(batch) for part in parts)


@dataclass(frozen=True, slots=True)
class _Part:
    """The samples that are changed: `choose` returns whether each is."""

    shards: int
    choose: Callable[[int, int], Tensor]

    def rows(self, size: int, blocks: int = 1) -> Tensor:
        """Returns whether each row is changed; a bool tensor (size,)."""
        return self.choose(size // blocks, self.shards).repeat(blocks)

    def in_turn(self, leaf: Tensor) -> Tensor:
        """Returns the samples, each changed one replaced by the next changed one."""
        rows = self.rows(len(leaf)).nonzero().flatten()
        order = torch.arange(len(leaf))
        order[rows] = rows.roll(1)
        return tree.rows_of(leaf, order)

    def along(self, value: Tensor, at: int, blocks: int = 1) -> Tensor:
        """Returns the same as `rows`, in a shape that broadcasts to `value`."""
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
    """Returns whether there are no micro-batches, which are sharded differently."""
    return all(number == 0 for number, _ in grads)


@dataclass(frozen=True, slots=True)
class _Trial:
    """Measures how the gradient changes if one part of the samples is changed."""

    run: Pass
    grads: Grads
    places: Places
    part: _Part

    def of(self, batch: Any) -> Couplings:
        """Returns the couplings that changed outputs and changed targets show."""
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
        """Returns the changes of the gradient at the other samples, flat, by key.

        `is_slope`: outputs without a gradient are left alone. They are data, as a mask
        is, and a small change of data is not the slope of the loss.
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
        """Returns the largest change by key, relative to the largest gradient."""
        tops = largest_gradients(self.grads)
        return {key: float(d.abs().max()) / tops[key] for key, d in changes.items()}

    def _unscaled(self, found: list[dict[str, Tensor]]) -> dict[str, float]:
        """Returns the part of the changes that is not a multiple of the gradient."""
        nothing = {
            place: None if grad is None else torch.zeros_like(grad)
            for place, grad in self.grads.items()
        }
        before = _differences(nothing, self.grads, self.places, self.part)
        worst: dict[str, float] = {}
        for changes in found:
            left = {
                key: _residual_of_factor(d, before[key]) for key, d in changes.items()
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
        """Returns the couplings that changed targets show, by key."""
        size = countables.samples(batch)

        def moved(change: Callable[[Tensor], Tensor]) -> dict[str, Tensor]:
            changed = tree.replace(
                batch, lambda _, t: change(t) if t.dim() and len(t) == size else t
            )
            return self._moved(lambda _, value: value, changed) or {}

        def reals(change: Callable[[Tensor], Tensor]) -> dict[str, Tensor]:
            return moved(lambda t: _reals(t, self.part, change))

        # Not a shift alone, which does not change the spread of the values.
        shifted, scaled = reals(lambda t: 0.8 * t + 1), reals(lambda t: 1.5 * t)
        tops = largest_gradients(self.grads)
        apart = _orthogonal(shifted, scaled, tops)
        if any(bool(change.any()) for change in scaled.values()):
            apart = _larger(apart, _grown(scaled, reals(lambda t: _FAR * t), tops))
        if not self._has_rows_for_all(size):
            return apart
        # Rows that change places leave all counts of classes and of masks as they are.
        found = _larger(apart, self._not_scaled(moved(self.part.in_turn)))
        # Normalising a row undoes a shift and a scale; a sum over rows has no order.
        first, second = (reals(_UnevenGrowth(seed)) for seed in (0, 1))
        return _larger(found, _orthogonal(first, second, tops))

    def _has_rows_for_all(self, size: int) -> bool:
        """Returns whether outputs have all samples: the step does not select some."""
        known = ((key, g) for (_, key), g in self.grads.items() if g is not None)
        return all(g.shape[self.places(key, g)[0]] % size == 0 for key, g in known)

    def _not_scaled(self, changes: dict[str, Tensor]) -> dict[str, float]:
        """Returns the relative changes; 0 for multiples of the gradient."""
        tops = largest_gradients(self.grads)
        known = {k: d for k, d in changes.items() if tops.get(k) and d.numel()}
        left = self._unscaled([known])
        return {
            key: size if left[key] > _CLEAR else 0.0
            for key, size in self._relative(known).items()
        }


def _largest(found: Iterable[Couplings]) -> Couplings:
    """Returns the largest of each number, for every key that occurs."""
    joined: dict[str, dict[str, float]] = {f.name: {} for f in fields(Couplings)}
    for one in found:
        for name, values in joined.items():
            joined[name] = _larger(values, getattr(one, name))
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


def _residual_of_factor(change: Tensor, before: Tensor) -> float:
    """Returns the residual of change ~ c * before, relative, where there is a change.

    Infinite if the gradient vanishes: then other samples decide which ones are
    selected, and not by what all are divided.
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
    """Returns how much of a gradient may change by rounding in this dtype."""
    return max(_NOTHING, 10 * torch.finfo(change.dtype).eps)


def _nudged(size: float) -> Change:
    """Returns a change that adds noise of `size` times the standard deviation."""

    def change(value: Tensor, rows: Tensor, _: int, key: str) -> Tensor:
        generator = torch.Generator().manual_seed(len(key))
        noise = torch.randn(value.shape, generator=generator, dtype=torch.float64)
        wide = value.double()
        spread = wide.std() if value.numel() > 1 else wide.abs().sum()
        return value + (noise * rows * spread * size).to(value.dtype)

    return change


def _copied(value: Tensor, rows: Tensor, at: int, _: str) -> Tensor:
    """Makes the changed rows copies of the first row that is left alone.

    The values stay in their range, and a loss that counts or sorts them changes.
    """
    first = int(rows.flatten().long().argmin())
    return torch.where(rows, value.narrow(at, first, 1), value)


def _turned(value: Tensor, rows: Tensor, at: int, _: str) -> Tensor:
    """Rolls the entries of the changed rows: another class is the largest."""
    if value.dim() < 2 or at == value.dim() - 1:  # noqa: PLR2004
        return value
    return torch.where(rows, value.roll(1, -1), value)


def _larger(first: dict[str, float], second: dict[str, float]) -> dict[str, float]:
    return {
        key: max(first.get(key, 0.0), second.get(key, 0.0))
        for key in {**first, **second}
    }


def _reals(leaf: Tensor, part: _Part, change: Callable[[Tensor], Tensor]) -> Tensor:
    """Changes targets that are real numbers; masks and classes stay as they are.

    So do sparse tensors, whose entries are not in rows.
    """
    if not leaf.is_floating_point() or leaf.layout != torch.strided:
        return leaf
    return torch.where(part.along(leaf, 0), change(leaf), leaf)


@dataclass(frozen=True, slots=True)
class _UnevenGrowth:
    """Makes each real number larger by a share of its own.

    Whole numbers stay, which may be classes or masks, and so does every sign. The
    shares are of one sign: a sum of weights grows too.
    """

    seed: int

    def __call__(self, leaf: Tensor) -> Tensor:
        generator = torch.Generator().manual_seed(self.seed)
        shares = torch.rand(leaf.shape, generator=generator, dtype=torch.float64)
        grown = (leaf.double() * (1 + _UNEVEN * shares)).to(leaf.dtype)
        return torch.where(leaf == leaf.round(), leaf, grown)


def _grown(
    near: Mapping[str, Tensor], far: Mapping[str, Tensor], tops: dict[str, float]
) -> dict[str, float]:
    """Returns the change by key if it grows with the size of the other targets.

    A loss that divides by the targets reduces a gradient, by at most all of it.
    """
    found = {}
    for key in set(near) & set(far):
        if not near[key].numel() or not tops.get(key):
            continue
        change, most = (float(d[key].double().abs().max()) for d in (near, far))
        if math.isfinite(most) and most > _GROWS * max(change, tops[key]):
            found[key] = change / tops[key]
    return found


def _orthogonal(
    first: Mapping[str, Tensor], second: Mapping[str, Tensor], tops: dict[str, float]
) -> dict[str, float]:
    """Returns the part of the first change orthogonal to the second, by key.

    The result is relative to the largest gradient.
    """
    found = {}
    for key in set(first) & set(second):
        a, b = first[key].double(), second[key].double()
        if not a.numel() or not tops.get(key):
            continue
        if float(b.abs().max()) <= _rounding(second[key]) * tops[key]:
            # The second change is zero up to rounding, so it has no direction to
            # compare with.
            found[key] = 0.0
            continue
        left = a - b * (float(torch.dot(a, b)) / float(torch.dot(b, b)))
        found[key] = float(left.abs().max()) / tops[key]
    return found


def measure_order(
    run: Pass, grads: Grads, places: Places, batch: Any, world_size: int, seed: int
) -> dict[str, float]:
    """Returns how far gradients change if blocks of samples are swapped, by key.

    Blocks of half a shard are swapped in outputs and targets alike. A sum over samples,
    whatever it is divided by, then has the same gradient at each sample. Samples that
    belong together (pairs, the candidates of a query) stay together in a block. If a
    sample has its neighbour's target, or is compared with the sample before it, the
    gradients change at the borders of the blocks.

    The result is relative to the largest gradient. Empty if a shard has no halves, or
    if random numbers are drawn, which follow the place and not the sample. The
    arguments are those of `measure`, and the seed of every pass.
    """
    samples, blocks = countables.samples(batch), _BLOCKS * world_size
    if world_size == 1 or samples % blocks:
        return {}

    def perturb(key: str, value: Tensor) -> Tensor:
        at, times = places(key, value)
        return value.index_select(at, _swapped(value.shape[at] // times, times, blocks))

    try:
        found = run(
            perturb, countables.part(batch, samples, _swapped(samples, 1, blocks))
        )
    except Exception:  # noqa: BLE001 (a loss may refuse another order)
        return {}
    state = torch.get_rng_state()
    isolation.seed_everything(seed)
    if not torch.equal(state, torch.get_rng_state()):
        return {}  # the pass drew random numbers
    tops, worst = largest_gradients(grads), dict[str, float]()
    for (number, key), grad in grads.items():
        other = found.get((number, key))
        if grad is None or other is None or not tops.get(key):
            continue
        change = float((other - perturb(key, grad)).abs().max()) / tops[key]
        if not math.isnan(change):
            worst[key] = max(worst.get(key, 0.0), change)
    return worst


def _swapped(size: int, times: int, blocks: int) -> Tensor:
    """Returns the rows in their new order: every other block before its neighbour.

    `times`: how often all samples are repeated in the rows. The first and the last
    block stay. Whole shards are not swapped: that is no new order for a loss in which
    the first sample is the neighbour of the last.
    """
    parts = list(torch.arange(size).tensor_split(blocks))
    for i in range(1, blocks - 1, 2):
        parts[i], parts[i + 1] = parts[i + 1], parts[i]
    once = torch.cat(parts)
    return torch.cat([once + i * size for i in range(times)])
