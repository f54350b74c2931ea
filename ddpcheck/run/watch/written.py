"""When a step writes into gradients that are not all there yet.

Between two backwards of one update, where the sum of micro-batches is not complete, or
between a backward and the first exchange after it, where a step averages by itself and
the gradients are the rank's own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import Tensor

from ddpcheck.run import private


@dataclass(slots=True)
class Written:
    """Counts them; which gradients are meant is asked whenever it matters.

    `early`: backwards before which the step wrote into gradients that they added to.
    `alone`: exchanges before which it wrote into what a backward had left.
    """

    parameters: Callable[[], Mapping[str, Tensor]] = dict
    early: int = 0
    alone: int = 0
    left: int = 0  # times written when the last backward ended
    is_own: bool = False  # nothing was exchanged since then

    def before_backward(self, *, is_first: bool) -> None:
        """Looks at what the backward adds to, which is nothing before the first."""
        if not is_first and self._times() > self.left:
            self.early += 1

    def after_backward(self) -> None:
        """Notes what it has left."""
        self.left = self._times()
        self.is_own = True

    def before_exchange(self) -> None:
        """Looks at what may be exchanged, before the first exchange alone."""
        if self.is_own and self._times() > self.left:
            self.alone += 1
        self.is_own = False

    def updated(self) -> None:
        """Forgets: the gradients have been used."""
        self.is_own = False

    def _times(self) -> int:
        grads = (p.grad for p in self.parameters().values())
        return sum(private.version(grad) for grad in grads if grad is not None)
