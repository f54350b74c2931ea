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
    own = os.getpgrp()
    for pid in _descendants(of):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            group = os.getpgid(pid)
            if group == own:
                os.kill(pid, signal.SIGKILL)
            else:
                os.killpg(group, signal.SIGKILL)


def _descendants(of: int) -> list[int]:
    found = [of]
    for pid in found:
        for task in _tasks(pid):
            with contextlib.suppress(OSError):
                text = (task / "children").read_text(encoding="ascii")
                found += map(int, text.split())
    return found[1:]


def _tasks(pid: int) -> list[Path]:
    """Returns the folders of a process's threads; none of one that has ended."""
    try:
        return list(Path(f"/proc/{pid}/task").iterdir())
    except OSError:
        return []
