"""Ranks that wait for each other for ever: seen long before their deadline.

Everything that ranks on one machine exchange goes through themselves. A job all of
whose ranks wait in an exchange, while none of them runs, never ends: what they wait for
was sent by none, and a rank that has ended its job sends nothing more. A wait to which
the target gave a deadline of its own is left to that, as is one on a handle, which no
frame of torch's shows.
"""

from __future__ import annotations

from dataclasses import dataclass

from ddpcheck.ranks.crew import Crew
from ddpcheck.ranks.starvation import Turns

# In a look of half a second: gloo's own threads wake now and then, for less than that.
_AWAKE_S = 0.005
_STARVED_S = 0.2
LOOKS = 6  # in a row


@dataclass(slots=True)
class Quiet:
    """How long the ranks of one job have done nothing.

    `enough`: the looks in a row at which they did nothing, until they are asked.
    """

    enough: int = LOOKS
    _looks: int = 0
    _ask_at: int = 0

    def __post_init__(self) -> None:
        self._ask_at = self.enough

    def note(self, turns: Turns | None) -> None:
        """Counts a look at the job."""
        is_quiet = turns is not None and (
            turns.ran_s < _AWAKE_S and turns.waited_s < _STARVED_S
        )
        self._looks = self._looks + 1 if is_quiet else 0
        if not is_quiet:
            self._ask_at = self.enough

    def is_for_ever(self, crew: Crew) -> bool:
        """Returns whether the job can go on no more.

        Asks the ranks where they are once they have been quiet for long enough, then
        each time after twice as long: one that sleeps, or waits for a disk, goes on.
        """
        # One that was sent something and has had no core yet is in an exchange, too.
        if self._looks < self._ask_at or crew.is_awake():
            return False
        self._ask_at *= 2
        return crew.waits_for_itself()
