"""What the engine asks of the kernel: signals, the end of a parent, CPU time.

The signal for a stack is not SIGUSR1: schedulers of clusters send that one, and
training code handles it, to save and leave. Healthy ranks are sent the signal too.

Time in which ranks could not run does not count as theirs. On a machine with more work
than cores a process waits for a core; a virtual machine may stop as a whole. Neither is
caused by the code that is checked. The kernel counts the time that each thread ran and
waited (Linux with CONFIG_SCHEDSTATS; unknown elsewhere). A stop of the machine shows in
a wait that ends late.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

_REALTIME = getattr(signal, "SIGRTMIN", None)

STACK: int = signal.SIGUSR1 if _REALTIME is None else _REALTIME + 7


IN_CHECK = "DDPCHECK_IN_CHECK"
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_NUMBER = signal.SIGUSR2


def in_check() -> bool:
    """Returns whether ddpcheck started this process to check what runs in it.

    True on every rank, in the single process that the ranks are compared with, and in
    the processes that these start, for example the workers of a DataLoader. False in
    the process of the command line or of pytest, and wherever the script runs without
    ddpcheck. A script that wants to be short when it is checked asks it:

        rows = 64 if ddpcheck.in_check() else 1_000_000

    It must not be asked to train in another way: the check would then cover code that
    a training does not run.
    """
    return IN_CHECK in os.environ


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


_PROC = Path("/proc")
_NS = 1e9
_ASLEEP = "SIZX"  # states of a thread that waits for others, or has ended
_LATE_S = 0.2  # on a healthy machine a wait may end this late


@dataclass(frozen=True, slots=True)
class CpuTime:
    """Seconds since the last look, each of the thread that has most of it."""

    ran_s: float = 0.0  # on a core
    waited_s: float = 0.0  # for a core


class Starvation:
    """CPU time of the processes of one job."""

    def __init__(self) -> None:
        self._before: dict[str, CpuTime] = {}  # by thread

    def look(self, pids: Iterable[int]) -> CpuTime | None:
        """Returns the CPU time since the last look; None where it is not counted.

        A thread that waits in a collective does not wait for a core: a crew that hangs
        there is not starved.
        """
        now = {path: times for pid in pids for path, times in _cpu_times(pid)}
        known = [(times, self._before.get(path, times)) for path, times in now.items()]
        self._before = now
        if not now:
            return None
        return CpuTime(
            ran_s=max(times.ran_s - before.ran_s for times, before in known),
            waited_s=max(times.waited_s - before.waited_s for times, before in known),
        )


def is_any_awake(pids: Iterable[int]) -> bool:
    """Returns whether a thread runs, or waits for a core or a page.

    The kernel counts time spent waiting for a core only when the thread gets one.
    """
    return any(state not in _ASLEEP for pid in pids for state in _states(pid))


def standstill(asked_s: float, took_s: float) -> float:
    """Returns how long the machine stood still during a wait of `asked_s` seconds."""
    late = took_s - asked_s
    return late if late > _LATE_S else 0.0


def _cpu_times(pid: int) -> Iterable[tuple[str, CpuTime]]:
    """Yields every thread of a process with its CPU time since it began."""
    for path, text in _of_threads(pid, "schedstat"):
        with contextlib.suppress(ValueError, IndexError):
            ran, waited = text.split()[:2]
            yield path, CpuTime(int(ran) / _NS, int(waited) / _NS)


def _states(pid: int) -> Iterable[str]:
    """Yields the state of every thread of a process, a letter: see proc(5)."""
    for _, text in _of_threads(pid, "stat"):
        yield from text.rpartition(")")[2].split()[:1]  # a name may contain brackets


def _of_threads(pid: int, name: str) -> Iterable[tuple[str, str]]:
    """Yields path and text of a /proc file of every thread."""
    paths: list[Path] = []
    with contextlib.suppress(OSError):  # the process has ended
        paths = list((_PROC / str(pid) / "task").glob(f"*/{name}"))
    for path in paths:
        with contextlib.suppress(OSError):  # the thread has
            yield str(path), path.read_text(encoding="utf-8", errors="replace")
