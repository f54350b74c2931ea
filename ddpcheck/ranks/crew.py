"""W ranks with one process group that lives as long as they do.

A crew is all or nothing: after a rank raised, died or hung the others may wait for
it in a collective for ever, so the whole crew is replaced.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from ddpcheck.errors import frames
from ddpcheck.ranks import pauses, starvation
from ddpcheck.ranks.messages import Job, Message, Outcome, OwnTimeout
from ddpcheck.ranks.rank import Rank

_STACK_WAIT_S = 1.0


class Crew:
    """The ranks of one world size; world size 0 is one solo process."""

    def __init__(
        self,
        ranks: Sequence[Rank],
        files: Path,
        *,
        world_size: int,
        device: str = "cpu",
    ) -> None:
        self.ranks = ranks
        self._files = files  # the path with which those of all its ranks begin
        self.world_size, self.device = world_size, device
        self.busy = False
        self.broken = False
        # Ranks that sit, with their process group; those elsewhere do not tell.
        self._ready = {i for i, rank in enumerate(ranks) if not rank.tells_when_ready}
        self.outcomes: list[Outcome] = []

    def send(self, job: Job) -> None:
        """Gives every rank the job; results come through `receive`."""
        self.busy = True
        self.outcomes = [Outcome(rank=r) for r in range(len(self.ranks))]
        for rank in self.ranks:
            rank.send(job)

    @property
    def is_ready(self) -> bool:
        """Whether every rank has begun, or could begin, a job."""
        return len(self._ready) == len(self.ranks)

    def pauses(self) -> tuple[bool, bool]:
        """Returns whether a rank imports within its job, and whether one has."""
        return pauses.take(self._files.parent, self._files.name)

    def pids(self) -> list[int]:
        """Returns the process ids of the ranks on this machine."""
        return [pid for rank in self.ranks if (pid := rank.pid) is not None]

    def waiting_for(self) -> list[Any]:
        """Returns what to `wait` on: the handles of running ranks."""
        running = [o.rank for o in self._running()]
        return [handle for r in running for handle in self.ranks[r].handles()]

    def receive(self, ready: Collection[Any]) -> None:
        """Takes in what has arrived on these of the `waiting_for` handles."""
        for outcome in self.outcomes:
            if outcome.kind != "running":
                continue
            rank = self.ranks[outcome.rank]
            if not any(handle in ready for handle in rank.handles()):
                continue
            while outcome.kind == "running":
                message = rank.next_message()
                if message is None:
                    break
                if message.kind != "unseated":
                    self._ready.add(outcome.rank)
                _apply(message, outcome)
            if outcome.kind == "running" and not rank.is_alive():
                outcome.kind = "died" if outcome.rank in self._ready else "unseated"
                outcome.exit_code = rank.exit_code
        if all(o.kind != "running" for o in self.outcomes):
            self.busy = False

    def collect_progress(self) -> None:
        """Adds what the ranks emitted, once all have ended."""
        for outcome in self.outcomes:
            outcome.progress = self.ranks[outcome.rank].progress()

    def is_awake(self) -> bool:
        """Returns whether a rank of this machine runs, or would if it had a core."""
        return starvation.is_any_awake(self.pids())

    def waits_for_itself(self) -> bool:
        """Returns whether all ranks that run are in an exchange with the others.

        Not known of GPUs, whose work is not the process's, nor of other machines, nor
        where a wait has a deadline of the target's own.
        """
        running = self._running()
        is_here = all(self.ranks[o.rank].pid is not None for o in self.outcomes)
        if self.world_size <= 1 or self.device != "cpu" or not is_here or not running:
            return False
        told = (said for rank in self.ranks for said in rank.progress())
        if any(isinstance(said, OwnTimeout) for said in told):
            return False
        return all(frames.exchanges(stack) for stack in self._stacks(running))

    def stop_running(self, kind: Any) -> None:
        """Marks the ranks still running as `kind`, with their stacks; kills all."""
        running = self._running()
        for outcome, stack in zip(running, self._stacks(running), strict=True):
            outcome.kind, outcome.stack = kind, stack
        self.kill()

    def _running(self) -> list[Outcome]:
        return [o for o in self.outcomes if o.kind == "running"]

    def _stacks(self, outcomes: list[Outcome]) -> list[str]:
        """Returns where these ranks are; they go on."""
        for outcome in outcomes:
            self.ranks[outcome.rank].ask_stack()
        deadline = time.monotonic() + _STACK_WAIT_S
        return [self.ranks[outcome.rank].stack(deadline) for outcome in outcomes]

    def collect_last_words(self) -> None:
        """Adds what the ranks that did not end well wrote, and where the dead were."""
        for outcome in self.outcomes:
            rank = self.ranks[outcome.rank]
            if outcome.kind == "died":
                outcome.stack = rank.stack_so_far()
            if outcome.kind != "done" or getattr(outcome.value, "failed", False):
                outcome.stderr = rank.stderr()

    def kill(self) -> None:
        """Kills all ranks and what they started; the crew is of no further use."""
        self.broken = True
        self.busy = False
        for rank in self.ranks:
            rank.kill()
        for rank in self.ranks:
            rank.reap()

    def remove_files(self) -> None:
        """Removes what the ranks wrote, of a crew that was killed and looked at."""
        for path in self._files.parent.glob(f"{self._files.name}[-.]*"):
            path.unlink(missing_ok=True)

    def dismiss(self) -> None:
        """Asks idle ranks to leave, without waiting for them."""
        for rank in self.ranks:
            rank.send(None)


def _apply(message: Message, outcome: Outcome) -> None:
    outcome.leftovers = message.leftovers
    if message.kind == "done":
        outcome.kind, outcome.value = "done", message.payload
    elif message.kind in ("raised", "unseated"):
        outcome.kind, outcome.raised = message.kind, message.payload
