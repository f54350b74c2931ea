"""When a step writes into gradients that are not all there yet.

Between two backwards of one update, where the sum of micro-batches is not complete, or
between a backward and the first exchange after it, where a step averages by itself and
the gradients are the rank's own. Or after the last of them, before the update.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from torch import Tensor

from ddpcheck.run import private


@dataclass(slots=True)
class Written:
    """Counts them; which gradients are meant is asked whenever it matters.

    `early`: backwards before which the step wrote into gradients that they added to.
    `alone`: exchanges before which it wrote into what a backward had left. `late`:
    updates before which it did, and exchanged nothing.
    """

    parameters: Callable[[], Mapping[str, Tensor]] = dict
    early: int = 0
    alone: int = 0
    late: int = 0
    left: int = 0  # times written when the last backward ended
    grads: list[Tensor] = field(default_factory=list)  # that it left
    is_own: bool = False  # nothing was exchanged since then

    def before_backward(self, *, is_first: bool) -> None:
        """Looks at what the backward adds to, which is nothing before the first."""
        if not is_first and self._times() > self.left:
            self.early += 1

    def after_backward(self) -> None:
        """Notes what it has left."""
        self.left, self.grads = self._times(), self._now()
        self.is_own = True

    def before_exchange(self) -> None:
        """Looks at what may be exchanged, before the first exchange alone."""
        if self.is_own and self._times() > self.left:
            self.alone += 1
        self.is_own = False

    def updated(self) -> None:
        """Looks at what is used, and forgets it."""
        if self.is_own and (self._times() > self.left or self._has_others()):
            self.late += 1
        self.grads = []
        self.is_own = False

    def _times(self) -> int:
        return sum(map(private.version, self._now()))

    def _has_others(self) -> bool:
        """Returns whether a parameter was given another gradient since."""
        known = set(map(id, self.grads))
        return any(id(grad) not in known for grad in self._now())

    def _now(self) -> list[Tensor]:
        grads = (p.grad for p in self.parameters().values())
        return [grad for grad in grads if grad is not None]
