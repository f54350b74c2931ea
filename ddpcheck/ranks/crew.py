"""W rank processes with one process group that lives as long as they do.

A crew is all or nothing: after a rank raised, died or hung the others may wait for
it in a collective for ever, so the whole crew is replaced.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Collection
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from ddpcheck.ranks import journal
from ddpcheck.ranks.forkserver import RankProcess, Server
from ddpcheck.ranks.messages import Job, Message, Outcome, Seat
from ddpcheck.ranks.worker import rank_main

_STDERR_LINES = 20
_STACK_WAIT_S = 0.3


class Crew:
    """The processes of one world size; world size 0 is one solo process."""

    def __init__(
        self,
        server: Server,
        *,
        world_size: int,
        folder: Path,
        name: str,
        timeout_s: float,
        threads: int,
        device: str = "cpu",
    ) -> None:
        self.device = device
        self.world_size = world_size
        self.folder = folder
        self.name = name
        self.processes: list[RankProcess] = []
        self.connections: list[Connection] = []
        self.busy = False
        self.broken = False
        self._ready: set[int] = set()  # ranks that sit, with their process group
        self.outcomes: list[Outcome] = []
        self._log_sizes: list[int] = []  # when the job began
        for rank in range(max(1, world_size)):
            ours, theirs = Pipe()
            seat = Seat(
                rank=rank,
                world_size=world_size,
                folder=str(folder),
                name=f"{name}-{rank}",
                timeout_s=timeout_s,
                threads=threads,
                device=device,
            )
            self.processes.append(server.spawn(rank_main, (theirs, seat)))
            theirs.close()
            self.connections.append(ours)

    def send(self, job: Job) -> None:
        """Gives every rank the job; results come through `receive`."""
        self.busy = True
        ranks = range(len(self.processes))
        self.outcomes = [Outcome(rank=rank) for rank in ranks]
        self._log_sizes = [_size(self._log(rank)) for rank in ranks]
        for connection in self.connections:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                connection.send(job)

    @property
    def is_ready(self) -> bool:
        """Whether every rank has begun, or could begin, a job."""
        return len(self._ready) == len(self.processes)

    def waiting_for(self) -> list[Any]:
        """Returns what to `wait` on: connections and sentinels of running ranks."""
        running = [o.rank for o in self.outcomes if o.kind == "running"]
        return [self.connections[r] for r in running] + [
            self.processes[r].sentinel for r in running
        ]

    def receive(self, ready: Collection[Any]) -> None:
        """Takes in what has arrived on these of the `waiting_for` handles."""
        for outcome in self.outcomes:
            if outcome.kind != "running":
                continue
            connection = self.connections[outcome.rank]
            process = self.processes[outcome.rank]
            if connection not in ready and process.sentinel not in ready:
                continue
            while outcome.kind == "running":
                message = self._next_message(outcome.rank)
                if message is None:
                    break
                self._ready.add(outcome.rank)
                _apply(message, outcome)
            if outcome.kind == "running" and not process.is_alive():
                outcome.kind = "died"
                outcome.exit_code = process.exitcode
        if all(o.kind != "running" for o in self.outcomes):
            self.busy = False

    def collect_progress(self) -> None:
        """Adds what the ranks emitted, once all have ended."""
        for outcome in self.outcomes:
            path = self.folder / f"{self.name}-{outcome.rank}.journal"
            outcome.progress = journal.read(path)

    def _next_message(self, rank: int) -> Message | None:
        connection = self.connections[rank]
        try:
            if connection.poll():
                message: Message = connection.recv()
                return message
        except (EOFError, OSError):
            pass
        return None

    def stop_running(self, kind: Any) -> None:
        """Marks the ranks still running as `kind`, with their stacks; kills all."""
        running = [o for o in self.outcomes if o.kind == "running"]
        for outcome in running:
            self._signal(outcome.rank, signal.SIGUSR1)
        deadline = time.monotonic() + _STACK_WAIT_S
        for outcome in running:
            outcome.kind = kind
            outcome.stack = self._read_stack(outcome.rank, deadline)
        self.kill()

    def _read_stack(self, rank: int, deadline: float) -> str:
        """Returns what faulthandler has written, once it writes no more."""
        text, last = "", None
        while text != last or not text:
            if time.monotonic() > deadline:
                break
            if last is not None:
                time.sleep(0.01)
            text, last = self._stack_so_far(rank), text
        return text

    def _log(self, rank: int) -> Path:
        return self.folder / f"{self.name}-{rank}.log"

    def _stack_so_far(self, rank: int) -> str:
        path = self.folder / f"{self.name}-{rank}.stack"
        try:
            text = path.read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""
        return text.partition("\nExtension modules:")[0]

    def collect_last_words(self) -> None:
        """Adds what the ranks that did not end well wrote, and where the dead were."""
        for outcome in self.outcomes:
            if outcome.kind == "died":
                # faulthandler writes it on SIGSEGV, SIGABRT and their like.
                outcome.stack = self._stack_so_far(outcome.rank)
            if outcome.kind != "done" or getattr(outcome.value, "failed", False):
                start = self._log_sizes[outcome.rank]
                outcome.stderr = _last_lines(self._log(outcome.rank), start)

    def kill(self) -> None:
        """Kills all ranks and what they started; the crew is of no further use."""
        self.broken = True
        self.busy = False
        for rank in range(len(self.processes)):
            self._signal(rank, signal.SIGKILL, group=True)
        for process in self.processes:
            process.join(2)
        for connection in self.connections:
            connection.close()

    def remove_files(self) -> None:
        """Removes what the ranks wrote, of a crew that was killed and looked at."""
        for path in self.folder.glob(f"{self.name}[-.]*"):
            path.unlink(missing_ok=True)

    def dismiss(self) -> None:
        """Asks idle ranks to leave, without waiting for them."""
        for connection in self.connections:
            with contextlib.suppress(OSError):
                connection.send(None)

    def _signal(self, rank: int, number: int, *, group: bool = False) -> None:
        pid = self.processes[rank].pid
        if pid is None:
            return
        if group:
            # What a dead rank left behind is in its group still.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, number)
        if self.processes[rank].exitcode is not None:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def _apply(message: Message, outcome: Outcome) -> None:
    outcome.leftovers = message.leftovers
    if message.kind == "done":
        outcome.kind, outcome.value = "done", message.payload
    elif message.kind == "raised":
        outcome.kind, outcome.raised = "raised", message.payload


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
    return "\n".join(lines[-_STDERR_LINES:])
