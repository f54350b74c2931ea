"""Updates of a step: which reference update is the counterpart; shared weights.

Hooks that update each parameter once its gradient is ready do so in the order in which
backward computes gradients, which depends on kernels and the graph. So a rank's k-th
update of some parameters is compared with the k-th single-process update of the same.

`Sharing` is the evidence that ranks average weights after an update instead of
gradients. Equal weights alone do not show it: an optimizer that uses only signs, or
normalizes gradients, hides wrong gradients. Ranks that average weights differ when the
optimizer steps, and something other than the optimizer writes the weights then.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from ddpcheck.compare import digests
from ddpcheck.compare.trace import Reader
from ddpcheck.run.facts import Digest, of_trace

_GRADIENTS = "gradients"
_MOST = 8  # updates that a rank may have skipped
Named = dict[str, Tensor | None]
Place = tuple[str, Named]


@dataclass(slots=True)
class Updates:
    """Matches the updates of each step; `taken` are those that a rank has made."""

    reader: Reader
    step: int = -1
    taken: set[str] = field(default_factory=set)
    scales: dict[int, float] = field(default_factory=dict)  # by step
    known: dict[tuple[str, int], set[str]] = field(default_factory=dict)

    def places(self, quantity: str, step: int, named: Named) -> list[Place]:
        """Returns the reference updates that may correspond to an update.

        The first is the next update of these parameters. The others are for a rank that
        has skipped some, as within `join()`: it may equal one of them.

        Args:
            quantity: "gradients" of the first update, "gradients@2" of the third.
            step: from 0.
            named: gradients, "weight@2" in the third update.
        """
        groups = self.reader.index.groups
        has_one = quantity == _GRADIENTS and (f"{_GRADIENTS}@1", step) not in groups
        if has_one or not _is_update(quantity):
            return [(quantity, named)]
        if step != self.step:
            self.step, self.taken, self.known = step, set(), {}
        mine = {name.partition("@")[0] for name, t in named.items() if t is not None}
        alike = [
            other
            for other in dict.fromkeys((quantity, *self._of_step(step)))
            if other not in self.taken and mine <= self._with_gradients(other, step)
        ]
        return [
            (other, named if other == quantity else _renamed(named, other))
            for other in alike[:_MOST] or (quantity,)
        ]

    def take(self, quantity: str) -> None:
        """Notes the reference update that corresponds to the rank's."""
        self.taken.add(quantity)

    def left_out(self, step: int) -> list[str]:
        """Returns the single-process updates that the rank has not made in a step."""
        if step != self.step or not self.taken:
            return []
        return [update for update in self._of_step(step) if update not in self.taken]

    def scale(self, quantity: str, step: int) -> float:
        """Returns the scale of a group, its largest absolute value.

        A single gradient may consist of rounding errors, as for a bias before a batch
        norm: if updates happen within backward, the scale is that of the whole step.
        """
        of_parts = of_trace(self.reader.index).get("updates_in_backward")
        if not (of_parts and _is_update(quantity)):
            return self.reader.scale(quantity, step)
        if step not in self.scales:
            every = (self.reader.scale(q, step) for q in self._of_step(step))
            self.scales[step] = max(every, default=0.0)
        return self.scales[step]

    def _of_step(self, step: int) -> list[str]:
        groups = self.reader.index.groups
        return [q for q, at in groups if at == step and _is_update(q)]

    def _with_gradients(self, quantity: str, step: int) -> set[str]:
        """Returns the parameters with gradients at a single-process update."""
        key = quantity, step
        if key not in self.known:  # called for every update of a rank
            group = self.reader.index.groups.get(key, {})
            some = (n for n, entry in group.items() if entry is not None)
            self.known[key] = {n.partition("@")[0] for n in some}
        return self.known[key]


def _renamed(named: Named, quantity: str) -> Named:
    """Returns the gradients under their names in another update."""
    suffix = quantity.removeprefix(_GRADIENTS)
    return {f"{n.partition('@')[0]}{suffix}": t for n, t in named.items()}


def _is_update(quantity: str) -> bool:
    """Returns whether a quantity is the model's gradients at an update."""
    kind, _, number = quantity.partition("@")
    return kind == _GRADIENTS and (not number or number.isdecimal())


@dataclass(slots=True)
class Sharing:
    """Evidence of averaged weights. `is_wrong`: the last recorded gradients differ."""

    is_wrong: bool = False
    _after: dict[tuple[str, ...], Digest] = field(default_factory=dict)
    _reductions: list[bool] = field(default_factory=list)
    _ended: list[tuple[Digest, Digest]] = field(default_factory=list)

    def updated(self, held: Mapping[str, Tensor], *, reduces: bool) -> None:
        """Notes the weights that an optimizer has just updated by wrong gradients."""
        if not self.is_wrong:
            return
        self.is_wrong = False
        self._after[tuple(held)] = digests.digest(held)
        self._reductions.append(reduces)

    def end(self, weights: Mapping[str, Tensor | None]) -> None:
        """Notes the same weights at the end of the step."""
        for names, after in self._after.items():
            left = digests.digest({name: weights.get(name) for name in names})
            self._ended.append((after, left))

    def finish(self) -> tuple[tuple[tuple[Digest, Digest], ...], bool]:
        """Returns and resets `parted` and `reduces_in_update` of the step."""
        reduces = bool(self._reductions) and all(self._reductions)
        found = tuple(self._ended), reduces
        self.is_wrong = False
        self._after, self._reductions, self._ended = {}, [], []
        return found


def least_move(reader: Reader, step: int) -> float:
    """Returns the smallest relative change of a trained weight, single-process."""
    before = ("weights", step - 1) if step else ("initial", 0)
    moves = []
    known = reader.names(*before).keys() & reader.names("weights", step)
    for name in known & reader.names("gradients", step).keys():
        new = reader.get("weights", step, name)
        old = reader.get(*before, name)
        if new is not None and old is not None and new.numel():
            change = float((new - old).abs().max())
            moves.append(change / max(float(new.abs().max()), change, 1e-300))
    return min(moves, default=0.0)
