"""Signals between the processes of the engine: for a stack, and for a parent's end.

The signal for a stack is not SIGUSR1: schedulers of clusters send that one, and
training code handles it, to save and leave. Healthy ranks are sent the signal too.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

_REALTIME = getattr(signal, "SIGRTMIN", None)

STACK: int = signal.SIGUSR1 if _REALTIME is None else _REALTIME + 7


_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_NUMBER = signal.SIGUSR2


def kill_with_parent() -> None:
    """Makes the kernel kill this process when its parent ends; Linux only."""
    if sys.platform != "linux":
        return
    signal.signal(_NUMBER, signal.SIG_DFL)  # a handler of the parent is inherited
    _send_at_parent_end(signal.SIGKILL)
    if os.getppid() == 1:
        os._exit(0)


def call_after_parent(action: Callable[[], None]) -> None:
    """Calls `action` when the parent has ended, then exits; Linux only.

    It runs between two Python instructions, so not during a call that hangs in C.
    """
    if sys.platform != "linux":
        return
    parent = os.getppid()

    def handle(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        # Also sent when only the thread that started this process has ended.
        if os.getppid() != parent:
            action()
            os._exit(0)

    signal.signal(_NUMBER, handle)
    _send_at_parent_end(_NUMBER)


def leave_within(seconds: int) -> None:
    """Makes the kernel end this process after these seconds; Unix only.

    A process whose parent has ended has no other deadline.
    """
    if hasattr(signal, "SIGALRM"):
        signal.signal(signal.SIGALRM, signal.SIG_DFL)  # user code may handle it
        signal.alarm(seconds)


def _send_at_parent_end(number: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)


def kill_children(of: int) -> None:
    """Kills all descendants of a process; Linux only.

    Ranks lead process groups of their own, which are killed as a whole. Processes that
    a target starts at its import are in the group of the fork server and the tool.
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

    Read one by one: the kernel's list of children misses some when others end
    meanwhile. Zombies are included: processes they started may be in their group.
    """
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError):
            text = (path / "stat").read_text(encoding="utf-8")
            # "pid (name) state parent group ..."; a name may hold spaces.
            fields = text.rpartition(") ")[2].split()
            found[int(path.name)] = int(fields[1]), int(fields[2])
    return found
