"""Whether a rank's collectives have to do with rows: whose place may be a wrong one."""

from __future__ import annotations

from ddpcheck.run.observe.observe import Observed
from ddpcheck.run.spec import CollectiveCount, CollectiveEnd

# What adds or compares, number by number, and what sends nothing.
_REDUCTIONS = {"all_reduce", "all_reduce_coalesced", "barrier", "reduce"}
_TABLE = 2  # dimensions: of samples and of what each of them has


class Moving:
    """Watches the collectives of a step.

    Args:
        seen: what is observed of it.
        rows: how many samples the rank has.
    """

    def __init__(self, seen: Observed, rows: int) -> None:
        self._seen, self._rows = seen, rows
        self._adds = False
        seen.on_collective = self._note

    @property
    def moves_rows(self) -> bool:
        """Whether one does more than add: or adds samples of ranks to one another."""
        moves = bool(set(self._seen.collectives) - _REDUCTIONS)
        return moves or self._adds or self._seen.passed > 0

    def _note(self, told: CollectiveCount | CollectiveEnd) -> None:
        if not isinstance(told, CollectiveCount) or "B" in self._seen.events:
            return  # of gradients
        shape = told.shape or ()
        is_of_rows = len(shape) >= _TABLE and shape[0] == self._rows > 1
        self._adds |= is_of_rows and told.name in _REDUCTIONS
