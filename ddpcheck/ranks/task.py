"""One job on one crew: its deadline, and the detection of ranks that deadlock.

Ranks on one machine exchange data only with each other. When every running rank waits
in an exchange and none has used a core for a while, the job never ends: no rank will
send what the others wait for. A wait with a timeout of the target's own is left to that
timeout, as is a wait on a handle, which no frame of torch shows.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from ddpcheck.ranks.crew import Crew
from ddpcheck.ranks.messages import Outcome
from ddpcheck.ranks.processes import CpuTime, Starvation

# Per look of half a second: gloo's own threads wake now and then, for less than that.
_AWAKE_S = 0.005
_STARVED_S = 0.2
LOOKS = 6  # in a row


@dataclass(slots=True)
class Quiet:
    """How long the ranks of one job have been idle.

    `enough`: after this many idle looks in a row their stacks are read.
    """

    enough: int = LOOKS
    _looks: int = 0
    _ask_at: int = 0

    def __post_init__(self) -> None:
        self._ask_at = self.enough

    def note(self, times: CpuTime | None) -> None:
        """Counts a look at the job."""
        is_quiet = times is not None and (
            times.ran_s < _AWAKE_S and times.waited_s < _STARVED_S
        )
        self._looks = self._looks + 1 if is_quiet else 0
        if not is_quiet:
            self._ask_at = self.enough

    def is_deadlocked(self, crew: Crew) -> bool:
        """Returns whether the job is deadlocked.

        Reads the stacks of the ranks once they have been idle for long enough, then
        each time after twice as long: a rank that sleeps, or waits for a disk, goes on.
        """
        # A rank whose data has arrived but that has had no core yet is in an exchange
        # too.
        if self._looks < self._ask_at or crew.is_awake():
            return False
        self._ask_at *= 2
        return crew.waits_for_itself()


# For torch's own lazy imports, by all ranks at once, on few cores.
_PAUSES_S = 600.0
# A deadline is extended to this many times the limit at most, under any load.
_MOST_TIMES = 10.0
# After one rank failed, the others have this long to fail too, or as long again as the
# failure took. Those that wait in an exchange never fail; that is detected earlier.
_GRACE_S = 0.5
LOOK_S = 0.5  # between looks at a task that runs
_LOOK_AFTER_FAILURE_S = 0.05
# The first look has nothing to compare with.
_QUIET_LOOKS_AFTER_FAILURE = 3


@dataclass(slots=True)
class Task:
    """One job on one crew, waiting or running."""

    crew: Crew
    deadline: float
    limit_s: float  # from when all ranks are ready
    is_bounded: bool = False  # waiting for cores counts towards the limit
    has_begun: bool = False
    failed_at: float | None = None
    done: bool = False
    outcomes: list[Outcome] = field(default_factory=list)
    started: float = 0.0
    seconds: float = 0.0
    quiet: Quiet = field(default_factory=Quiet)
    _last_look: float = 0.0
    starved_s: float = 0.0  # a rank waited for a core, and got no extra time
    _given_s: float = 0.0
    _starvation: Starvation = field(default_factory=Starvation)

    def note_begin(self, now: float) -> None:
        """Starts the time limit once all ranks are ready."""
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
            times = self._starvation.look(self.crew.pids())
            self.quiet.note(times)
            waited_s = min((times or CpuTime()).waited_s, now - since)
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
        """The next moment at which its ranks may have to be stopped."""
        if self.failed_at is None:
            return self.deadline
        return min(self.deadline, self.failed_at + self.grace_s)

    @property
    def grace_s(self) -> float:
        """Seconds that the other ranks have once one has failed."""
        assert self.failed_at is not None
        return max(_GRACE_S, self.failed_at - self.started)

    def reason_to_stop(self, now: float) -> Literal["stopped", "hung", "stuck"] | None:
        """Returns why its running ranks must stop now, None while they may go on."""
        if self.failed_at is not None and now > self.failed_at + self.grace_s:
            return "stopped"
        if self.is_over(now):
            return "hung"
        if not self.quiet.is_deadlocked(self.crew):
            return None
        return "stuck" if self.failed_at is None else "stopped"

    def is_over(self, now: float) -> bool:
        """Returns whether the deadline has passed; imports of a rank extend it."""
        if now <= self.deadline:
            return False
        is_paused, was_paused = self.crew.pauses()
        if was_paused:
            self.deadline = now + self.limit_s
        elif is_paused and now < self.started + self.limit_s + _PAUSES_S:
            self.deadline = now + LOOK_S
        return now > self.deadline
