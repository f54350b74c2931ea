"""One job on one crew, and how long it may take."""

from __future__ import annotations

from dataclasses import dataclass, field

from ddpcheck.ranks.crew import Crew
from ddpcheck.ranks.messages import Outcome

# For imports of torch's own, by as many ranks as there are, on few cores.
_PAUSES_S = 600.0
_POLL_S = 0.5


@dataclass(slots=True)
class Task:
    """One job on one crew, waiting or running."""

    crew: Crew
    deadline: float
    limit_s: float  # from when all ranks are there
    has_begun: bool = False
    failed_at: float | None = None
    done: bool = False
    outcomes: list[Outcome] = field(default_factory=list)
    started: float = 0.0
    seconds: float = 0.0

    def note_begin(self, now: float) -> None:
        """Counts the time from here where the ranks are there at last."""
        if self.crew.is_ready and not self.has_begun:
            self.has_begun, self.deadline = True, now + self.limit_s

    def is_over(self, now: float) -> bool:
        """Returns whether the deadline has passed; pauses move it."""
        if now <= self.deadline:
            return False
        is_paused, was_paused = self.crew.pauses()
        if was_paused:
            self.deadline = now + self.limit_s
        elif is_paused and now < self.started + self.limit_s + _PAUSES_S:
            self.deadline = now + _POLL_S
        return now > self.deadline
