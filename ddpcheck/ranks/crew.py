"""Ranks, and crews of W ranks with one process group.

A crew is replaced as a whole: after a rank raised, died or hung the others may wait
for it in a collective for ever. `Rank` is the interface of a rank on any machine,
`LocalRank` a process of this one.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Collection, Sequence
from multiprocessing import Pipe
from pathlib import Path
from typing import Any, Protocol

from ddpcheck.errors import frames
from ddpcheck.errors.problem import shortened
from ddpcheck.ranks import messages, processes
from ddpcheck.ranks.messages import Job, Message, Outcome, OwnTimeout, Seat
from ddpcheck.ranks.server.forkserver import Server
from ddpcheck.ranks.worker import rank_main

_STDERR_LINES = 20
_STDERR_WIDTH = 1000
# The fork server reports a process's end once it has had a core; the pipe at once.
_LATE_S = 5.0
_DEATH = b"Fatal Python error"  # how faulthandler begins when a signal ends it


class Rank(Protocol):
    """The interface of a rank, on this machine or another."""

    reports_ready: bool  # it sends "ready" when it has joined its process group

    def send(self, job: Job | None) -> None:
        """Sends it a job, None to make it leave; does nothing if it has exited."""

    def handles(self) -> list[Any]:
        """Returns what to `wait` on for its next message or its end."""

    def next_message(self) -> Message | None:
        """Returns the next message, None where there is none; does not wait."""

    def is_alive(self) -> bool:
        """Returns whether messages may still come."""

    @property
    def pid(self) -> int | None:
        """The process id, None on another machine."""

    @property
    def exit_code(self) -> int | None:
        """The exit code, None while it runs or where it is unknown."""

    def ask_stack(self) -> None:
        """Makes it write its stack, for `stack` to read."""

    def stack(self, deadline: float) -> str:
        """Returns the requested stack; "" if it has not arrived by the deadline."""

    def stack_so_far(self) -> str:
        """Returns the stack that it wrote when a signal killed it, "" without one."""

    def progress(self) -> list[Any]:
        """Returns what the job emitted."""

    def stderr(self) -> str:
        """Returns the last lines of its output in this job."""

    def kill(self) -> None:
        """Kills it and what it started, without waiting."""

    def reap(self) -> None:
        """Waits for a killed rank to end and frees its resources."""


class LocalRank:
    """A rank process that a fork server of this machine made."""

    reports_ready = True

    def __init__(self, server: Server, seat: Seat) -> None:
        self._files = Path(seat.folder) / seat.name
        self.connection, theirs = Pipe()
        self._process = server.spawn(rank_main, (theirs, seat))
        theirs.close()
        self._log_size = 0  # when the job began
        self._stack_size = 0  # what was read of its stacks
        self._has_hung_up = self._was_waited_for = False

    def send(self, job: Job | None) -> None:
        """Sends through the pipe; the sentinel becomes ready if the rank has exited."""
        self._log_size = _size(self._files.with_suffix(".log"))
        with contextlib.suppress(OSError):
            self.connection.send(job)

    def handles(self) -> list[Any]:
        """Returns the pipe and the process's sentinel."""
        return [self.connection, self._process.sentinel]

    def next_message(self) -> Message | None:
        """Returns what is in the pipe."""
        try:
            if self.connection.poll():
                message: Message = self.connection.recv()
                return message
        except (EOFError, OSError):
            self._has_hung_up = True
        return None

    def is_alive(self) -> bool:
        """Returns whether the process runs.

        A rank that closed its pipe is waited for once: it may still run.
        """
        if self._has_hung_up and not self._was_waited_for:
            self._was_waited_for = True
            self._process.join(_LATE_S)
        return bool(self._process.is_alive())

    @property
    def pid(self) -> int | None:
        """The process id."""
        pid: int | None = self._process.pid
        return pid

    @property
    def exit_code(self) -> int | None:
        """The process's exit code, minus the signal that ended it."""
        code: int | None = self._process.exitcode
        return code

    def ask_stack(self) -> None:
        """Makes faulthandler write the stacks of all threads."""
        self._signal(processes.STACK)

    def stack(self, deadline: float) -> str:
        """Returns what faulthandler has written, once it has finished writing."""
        written, last = b"", None
        while written != last or not written:
            if time.monotonic() > deadline:
                break
            if last is not None:
                time.sleep(0.01)
            written, last = self._stacks(), written
        # It may die during the request: `stack_so_far` returns what it wrote then.
        asked = written.partition(_DEATH)[0]
        self._stack_size += len(asked)
        return _text(asked)

    def stack_so_far(self) -> str:
        """Returns it; faulthandler also writes on SIGSEGV, SIGABRT and others."""
        return _text(self._stacks())

    def _stacks(self) -> bytes:
        """Returns what was written since the last requested stack."""
        path = self._files.with_suffix(".stack")
        try:
            return path.read_bytes()[self._stack_size :]
        except OSError:
            return b""

    def progress(self) -> list[Any]:
        """Returns what the journal holds."""
        return messages.read_journal(self._files.with_suffix(".journal"))

    def stderr(self) -> str:
        """Returns the end of the log."""
        return _last_lines(self._files.with_suffix(".log"), self._log_size)

    def kill(self) -> None:
        """Kills the process group."""
        self._signal(signal.SIGKILL, group=True)

    def reap(self) -> None:
        """Joins the process."""
        self._process.join(2)
        self.connection.close()

    def _signal(self, number: int, *, group: bool = False) -> None:
        pid = self._process.pid
        if pid is None:
            return
        if group:
            # Child processes of a dead rank are still in its group.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, number)
        if self._process.exitcode is not None:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def _text(stacks: bytes) -> str:
    text = stacks.decode("utf-8", "replace")
    return frames.main_first(text.partition("\nExtension modules:")[0])


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _last_lines(path: Path, start: int) -> str:
    """Returns the last lines of a log after `start`, reading 16 KiB at most."""
    try:
        with path.open("rb") as stream:
            stream.seek(0, os.SEEK_END)
            stream.seek(max(start, stream.tell() - (16 << 10)))
            lines = stream.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return ""
    shown = (shortened(line, _STDERR_WIDTH) for line in lines[-_STDERR_LINES:])
    return "\n".join(shown)


def reason_unseated(unseated: Outcome) -> str:
    """Returns why a rank did not become ready."""
    if unseated.raised is not None:
        return f"{unseated.raised.type_name}: {unseated.raised.message}"
    return f"a rank ended with exit code {unseated.exit_code} before it was ready"


def unseated_ranks(outcomes: list[Outcome]) -> list[Outcome]:
    """Returns the ranks that never became ready: no user code has run in them.

    If a ready rank died in its job, ranks that were still starting fail for that
    reason: they are marked as stopped instead.
    """
    unseated = [o for o in outcomes if o.kind == "unseated"]
    if not any(o.kind == "died" for o in outcomes):
        return unseated
    for outcome in unseated:
        outcome.kind = "stopped"
    return []


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
        self._files = files  # prefix of the paths of all its ranks
        self.world_size, self.device = world_size, device
        self.busy = False
        self.broken = False
        # Ranks that have joined their group; those on other machines do not report it.
        self._ready = {i for i, rank in enumerate(ranks) if not rank.reports_ready}
        self.outcomes: list[Outcome] = []

    def send(self, job: Job) -> None:
        """Sends every rank the job; `receive` takes the results."""
        self.busy = True
        self.outcomes = [Outcome(rank=r) for r in range(len(self.ranks))]
        for rank in self.ranks:
            rank.send(job)

    @property
    def is_ready(self) -> bool:
        """Whether every rank has begun, or could begin, a job."""
        return len(self._ready) == len(self.ranks)

    def pauses(self) -> tuple[bool, bool]:
        """Returns whether a rank is importing within its job, and whether one has."""
        return messages.take_pauses(self._files.parent, self._files.name)

    def pids(self) -> list[int]:
        """Returns the process ids of the ranks on this machine."""
        return [pid for rank in self.ranks if (pid := rank.pid) is not None]

    def waiting_for(self) -> list[Any]:
        """Returns what to `wait` on: the handles of running ranks."""
        running = [o.rank for o in self._running()]
        return [handle for r in running for handle in self.ranks[r].handles()]

    def receive(self, ready: Collection[Any]) -> None:
        """Reads the messages of those `waiting_for` handles that are ready."""
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
        """Adds the progress events of the ranks, once all have ended."""
        for outcome in self.outcomes:
            outcome.progress = self.ranks[outcome.rank].progress()

    def is_awake(self) -> bool:
        """Returns whether a rank of this machine runs, or waits for a core."""
        return processes.is_any_awake(self.pids())

    def waits_for_itself(self) -> bool:
        """Returns whether all running ranks are in an exchange with the others.

        False on GPUs, whose work is not that of the process, on other machines, and
        where the target has set a timeout of its own for a wait.
        """
        running = self._running()
        is_here = all(self.ranks[o.rank].pid is not None for o in self.outcomes)
        if self.world_size <= 1 or self.device != "cpu" or not is_here or not running:
            return False
        events = (event for rank in self.ranks for event in rank.progress())
        if any(isinstance(event, OwnTimeout) for event in events):
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
        """Returns the stacks of these ranks, which go on running."""
        for outcome in outcomes:
            self.ranks[outcome.rank].ask_stack()
        deadline = time.monotonic() + _STACK_WAIT_S
        return [self.ranks[outcome.rank].stack(deadline) for outcome in outcomes]

    def collect_failures(self) -> None:
        """Adds the stderr of ranks that failed, and the stacks of those that died."""
        for outcome in self.outcomes:
            rank = self.ranks[outcome.rank]
            if outcome.kind == "died":
                outcome.stack = rank.stack_so_far()
            if outcome.kind != "done" or getattr(outcome.value, "failed", False):
                outcome.stderr = rank.stderr()

    def kill(self) -> None:
        """Kills all ranks and their child processes; the crew cannot be used again."""
        self.broken = True
        self.busy = False
        for rank in self.ranks:
            rank.kill()
        for rank in self.ranks:
            rank.reap()

    def remove_files(self) -> None:
        """Removes the files of a killed crew."""
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
