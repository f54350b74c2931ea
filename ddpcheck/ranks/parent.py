"""What a process does when its parent ends, however that ended."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_NUMBER = signal.SIGUSR2


def kill_with_parent() -> None:
    """Makes the kernel kill this process when its parent ends; Linux only."""
    if sys.platform != "linux":
        return
    signal.signal(_NUMBER, signal.SIG_DFL)  # inherited where the parent has it
    _tell_of_end(signal.SIGKILL)
    if os.getppid() == 1:
        os._exit(0)


def call_after_parent(action: Callable[[], None]) -> None:
    """Calls `action` when the parent has ended, then leaves; Linux only.

    It comes between two instructions of Python, so not within a call that hangs in C.
    """
    if sys.platform != "linux":
        return
    parent = os.getppid()

    def handle(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        # Sent, too, when only the thread that started this process has ended.
        if os.getppid() != parent:
            action()
            os._exit(0)

    signal.signal(_NUMBER, handle)
    _tell_of_end(_NUMBER)


def leave_within(seconds: int) -> None:
    """Makes the kernel end this process by then, whatever it does meanwhile; Unix only.

    Nobody waits any more for one whose parent has gone: it has no other deadline.
    """
    if hasattr(signal, "SIGALRM"):
        signal.signal(signal.SIGALRM, signal.SIG_DFL)  # user code may have its own
        signal.alarm(seconds)


def _tell_of_end(number: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)


def kill_children(of: int) -> None:
    """Kills the children of a process, and theirs; Linux only.

    With their process groups where they have their own, as ranks do; what a target
    starts while it is imported is in the group of the fork server, and of the tool.
    """
    own, seen = os.getpgrp(), _processes()
    theirs = [of]
    for parent in theirs:
        theirs += [pid for pid, (its, _) in seen.items() if its == parent]
    for pid in theirs[1:]:
        group = seen[pid][1]
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if group == own:
                os.kill(pid, signal.SIGKILL)
            else:
                os.killpg(group, signal.SIGKILL)


def _processes() -> dict[int, tuple[int, int]]:
    """Returns (parent, process group) of every process, by its id.

    One by one: a list of the kernel's lacks some where others end meanwhile. What has
    ended and was not waited for is there, and what it has started may be in its group.
    """
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError):
            text = (path / "stat").read_text(encoding="utf-8")
            # "pid (name) state parent group ..."; a name may hold spaces.
            fields = text.rpartition(") ")[2].split()
            found[int(path.name)] = int(fields[1]), int(fields[2])
    return found
