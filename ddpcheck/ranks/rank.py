"""One rank: a process of this machine, and what a crew wants of any rank."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from multiprocessing import Pipe
from pathlib import Path
from typing import Any, Protocol

from ddpcheck.errors import frames
from ddpcheck.errors.problem import shortened
from ddpcheck.ranks import journal, signals
from ddpcheck.ranks.forkserver import Server
from ddpcheck.ranks.messages import Job, Message, Seat
from ddpcheck.ranks.worker import rank_main

_STDERR_LINES = 20
_STDERR_WIDTH = 1000
# The fork server tells of a process's end, after it has had a core; the pipe at once.
_LATE_S = 5.0
_DEATH = b"Fatal Python error"  # how faulthandler begins when a signal ends it


class Rank(Protocol):
    """What a crew does with a rank, wherever the rank is."""

    tells_when_ready: bool  # a message comes when it sits, with its process group

    def send(self, job: Job | None) -> None:
        """Gives it a job, or asks it to leave; nothing happens to one that is gone."""

    def handles(self) -> list[Any]:
        """Returns what to `wait` on for its next message or its end."""

    def next_message(self) -> Message | None:
        """Returns what has arrived, None where nothing has; does not wait."""

    def is_alive(self) -> bool:
        """Returns whether messages may still come."""

    @property
    def pid(self) -> int | None:
        """The process id, None for one of another machine."""

    @property
    def exit_code(self) -> int | None:
        """The exit code, None while it runs or where nobody knows."""

    def ask_stack(self) -> None:
        """Makes it write its stack, for `stack` to read."""

    def stack(self, deadline: float) -> str:
        """Returns the stack asked for; "" where it is not there by the deadline."""

    def stack_so_far(self) -> str:
        """Returns the stack that it wrote when a signal ended it, "" without one."""

    def progress(self) -> list[Any]:
        """Returns what the job emitted."""

    def stderr(self) -> str:
        """Returns the last lines of its output in this job."""

    def kill(self) -> None:
        """Kills it and what it started, without waiting."""

    def reap(self) -> None:
        """Waits for the end of a killed rank and frees what it held."""


class LocalRank:
    """A rank process that a fork server of this machine made."""

    tells_when_ready = True

    def __init__(self, server: Server, seat: Seat) -> None:
        self._files = Path(seat.folder) / seat.name
        self.connection, theirs = Pipe()
        self._process = server.spawn(rank_main, (theirs, seat))
        theirs.close()
        self._log_size = 0  # when the job began
        self._stack_size = 0  # what was read of its stacks
        self._has_hung_up = self._was_waited_for = False

    def send(self, job: Job | None) -> None:
        """Sends through the pipe; the sentinel tells of one that is gone."""
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

        One that has hung up is waited for, once: it may have closed its pipe alone.
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
        """Lets faulthandler write all threads' stacks."""
        self._signal(signals.STACK)

    def stack(self, deadline: float) -> str:
        """Returns what faulthandler has written, once it writes no more."""
        written, last = b"", None
        while written != last or not written:
            if time.monotonic() > deadline:
                break
            if last is not None:
                time.sleep(0.01)
            written, last = self._stacks(), written
        # It may die while it is asked: what it wrote then is for `stack_so_far`.
        asked = written.partition(_DEATH)[0]
        self._stack_size += len(asked)
        return _text(asked)

    def stack_so_far(self) -> str:
        """Returns it; faulthandler writes on SIGSEGV, SIGABRT and their like, too."""
        return _text(self._stacks())

    def _stacks(self) -> bytes:
        """Returns what was written since the last that was asked for."""
        path = self._files.with_suffix(".stack")
        try:
            return path.read_bytes()[self._stack_size :]
        except OSError:
            return b""

    def progress(self) -> list[Any]:
        """Returns what the journal holds."""
        return journal.read(self._files.with_suffix(".journal"))

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
            # What a dead rank left behind is in its group still.
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
