"""Which of one process's updates an update of a rank is, where a step has several.

Hooks that update each parameter as its gradient is there do so in the order in which
backward makes gradients, and another kernel, or another graph, makes them in another.
So the k-th update of some parameters is one process's k-th of the same.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from ddpcheck.compare.trace import Reader

_GRADIENTS = "gradients"
_MOST = 8  # updates that a rank may have left out
Named = dict[str, Tensor | None]
Place = tuple[str, Named]


@dataclass(slots=True)
class Updates:
    """Numbers the updates of each step; `taken` are those that a rank has made."""

    reader: Reader
    step: int = -1
    taken: set[str] = field(default_factory=set)
    scales: dict[int, float] = field(default_factory=dict)  # by step
    known: dict[tuple[str, int], set[str]] = field(default_factory=dict)

    def places(self, quantity: str, step: int, named: Named) -> list[Place]:
        """Returns under which numbers an update's gradients may be one process's.

        The first is the next of these parameters. The others are for a rank that left
        some out, as it may within `join()`: one that they are equal to.

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
        """Notes which of one process's updates the rank's is."""
        self.taken.add(quantity)

    def left_out(self, step: int) -> list[str]:
        """Returns one process's updates that the rank has not made in a step."""
        if step != self.step or not self.taken:
            return []
        return [update for update in self._of_step(step) if update not in self.taken]

    def scale(self, quantity: str, step: int) -> float:
        """Returns the largest absolute value that a group's numbers are judged by.

        One gradient alone may be nothing but rounding, as that of a bias before a batch
        norm: where updates are made within a backward, it is that of the whole step.
        """
        of_parts = self.reader.index.facts.get("updates_in_backward")
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
        """Returns the parameters that have gradients at an update of one process."""
        key = quantity, step
        if key not in self.known:  # looked at for every update of a rank
            group = self.reader.index.groups.get(key, {})
            some = (n for n, entry in group.items() if entry is not None)
            self.known[key] = {n.partition("@")[0] for n in some}
        return self.known[key]


def _renamed(named: Named, quantity: str) -> Named:
    """Returns gradients by the names that they have in another update."""
    suffix = quantity.removeprefix(_GRADIENTS)
    return {f"{n.partition('@')[0]}{suffix}": t for n, t in named.items()}


def _is_update(quantity: str) -> bool:
    """Returns whether a quantity is the gradients of an update of the model's own."""
    kind, _, number = quantity.partition("@")
    return kind == _GRADIENTS and (not number or number.isdecimal())
