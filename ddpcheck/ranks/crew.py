"""W ranks with one process group that lives as long as they do.

A crew is all or nothing: after a rank raised, died or hung the others may wait for
it in a collective for ever, so the whole crew is replaced.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from typing import Any

from ddpcheck.ranks.messages import Job, Message, Outcome
from ddpcheck.ranks.rank import Rank

_STACK_WAIT_S = 0.3


class Crew:
    """The ranks of one world size; world size 0 is one solo process."""

    def __init__(
        self, ranks: Sequence[Rank], *, world_size: int, device: str = "cpu"
    ) -> None:
        self.ranks = ranks
        self.world_size, self.device = world_size, device
        self.busy = False
        self.broken = False
        self.outcomes: list[Outcome] = []

    def send(self, job: Job) -> None:
        """Gives every rank the job; results come through `receive`."""
        self.busy = True
        self.outcomes = [Outcome(rank=r) for r in range(len(self.ranks))]
        for rank in self.ranks:
            rank.send(job)

    def waiting_for(self) -> list[Any]:
        """Returns what to `wait` on: the handles of running ranks."""
        running = [o.rank for o in self.outcomes if o.kind == "running"]
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
                _apply(message, outcome)
            if outcome.kind == "running" and not rank.is_alive():
                outcome.kind = "died"
                outcome.exit_code = rank.exit_code
        if all(o.kind != "running" for o in self.outcomes):
            self.busy = False

    def collect_progress(self) -> None:
        """Adds what the ranks emitted, once all have ended."""
        for outcome in self.outcomes:
            outcome.progress = self.ranks[outcome.rank].progress()

    def stop_running(self, kind: Any) -> None:
        """Marks the ranks still running as `kind`, with their stacks; kills all."""
        running = [o for o in self.outcomes if o.kind == "running"]
        for outcome in running:
            self.ranks[outcome.rank].ask_stack()
        deadline = time.monotonic() + _STACK_WAIT_S
        for outcome in running:
            outcome.kind = kind
            outcome.stack = self.ranks[outcome.rank].stack(deadline)
        self.kill()

    def collect_stderr(self) -> None:
        """Adds the last lines of output of the ranks that did not end well."""
        for outcome in self.outcomes:
            if outcome.kind != "done":
                outcome.stderr = self.ranks[outcome.rank].stderr()

    def kill(self) -> None:
        """Kills all ranks and what they started; the crew is of no further use."""
        self.broken = True
        self.busy = False
        for rank in self.ranks:
            rank.kill()
        for rank in self.ranks:
            rank.reap()

    def dismiss(self) -> None:
        """Asks idle ranks to leave, without waiting for them."""
        for rank in self.ranks:
            rank.send(None)


def _apply(message: Message, outcome: Outcome) -> None:
    if message.kind == "done":
        outcome.kind, outcome.value = "done", message.payload
    elif message.kind == "raised":
        outcome.kind, outcome.raised = "raised", message.payload
