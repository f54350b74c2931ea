"""One job on one crew, and how long it may take."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from ddpcheck.ranks.crew import Crew
from ddpcheck.ranks.messages import Outcome
from ddpcheck.ranks.quiet import Quiet
from ddpcheck.ranks.starvation import Starvation, Turns

# For imports of torch's own, by as many ranks as there are, on few cores.
_PAUSES_S = 600.0
# A deadline is this many times as far away at most, however loaded the machine is.
_MOST_TIMES = 10.0
# After one rank failed, the others are given this long to fail too, or as long again
# as it took. Those that wait in an exchange never will, which is seen much earlier.
_GRACE_S = 0.5
LOOK_S = 0.5  # between looks at a task that runs
_LOOK_AFTER_FAILURE_S = 0.05
# The first of them does not tell what ran before.
_QUIET_LOOKS_AFTER_FAILURE = 3


@dataclass(slots=True)
class Task:
    """One job on one crew, waiting or running."""

    crew: Crew
    deadline: float
    limit_s: float  # from when all ranks are there
    is_bounded: bool = False  # the limit is one of the clock: waiting for cores counts
    has_begun: bool = False
    failed_at: float | None = None
    done: bool = False
    outcomes: list[Outcome] = field(default_factory=list)
    started: float = 0.0
    seconds: float = 0.0
    quiet: Quiet = field(default_factory=Quiet)
    _last_look: float = 0.0
    starved_s: float = 0.0  # that a rank waited for a core, though it got no more time
    _given_s: float = 0.0
    _starvation: Starvation = field(default_factory=Starvation)

    def note_begin(self, now: float) -> None:
        """Counts the time from here where the ranks are there at last."""
        if self.crew.is_ready and not self.has_begun:
            self.has_begun, self.deadline = True, now + self.limit_s

    def give_back(self, now: float, standstill_s: float) -> None:
        """Moves the deadline by the time in which the ranks could not run.

        Args:
            now: of the monotonic clock, in seconds.
            standstill_s: seconds just now in which nothing ran on this machine.
        """
        lost_s = standstill_s
        since = self._last_look or self.started
        if now - since >= self.look_s:
            turns = self._starvation.look(self.crew.pids())
            self.quiet.note(turns)
            waited_s = min((turns or Turns()).waited_s, now - since)
            if self.is_bounded:
                self.starved_s += waited_s
            else:
                lost_s = max(lost_s, waited_s)
            self._last_look = now
        lost_s = min(lost_s, (_MOST_TIMES - 1) * self.limit_s - self._given_s)
        self._given_s += lost_s
        self.deadline += lost_s

    def note_failure(self, now: float) -> None:
        """Notes that a rank has failed; looks at the others more often from here on."""
        if self.failed_at is None:
            self.failed_at, self._last_look = now, now
            self.quiet = Quiet(_QUIET_LOOKS_AFTER_FAILURE)

    @property
    def look_s(self) -> float:
        """Seconds between two looks at it."""
        return LOOK_S if self.failed_at is None else _LOOK_AFTER_FAILURE_S

    @property
    def next_end(self) -> float:
        """When its ranks have had all the time that they get, as far as is known."""
        if self.failed_at is None:
            return self.deadline
        return min(self.deadline, self.failed_at + self.grace_s)

    @property
    def grace_s(self) -> float:
        """Seconds that the other ranks have once one has failed."""
        assert self.failed_at is not None
        return max(_GRACE_S, self.failed_at - self.started)

    def reason_to_stop(self, now: float) -> Literal["stopped", "hung", "stuck"] | None:
        """Returns as what its running ranks end now, None while they may go on."""
        if self.failed_at is not None and now > self.failed_at + self.grace_s:
            return "stopped"
        if self.is_over(now):
            return "hung"
        if not self.quiet.is_for_ever(self.crew):
            return None
        return "stuck" if self.failed_at is None else "stopped"

    def is_over(self, now: float) -> bool:
        """Returns whether the deadline has passed; pauses move it."""
        if now <= self.deadline:
            return False
        is_paused, was_paused = self.crew.pauses()
        if was_paused:
            self.deadline = now + self.limit_s
        elif is_paused and now < self.started + self.limit_s + _PAUSES_S:
            self.deadline = now + LOOK_S
        return now > self.deadline
