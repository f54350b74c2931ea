"""CPU time of ranks: time in which they could not run does not count as theirs.

On a machine with more work than cores a process waits for a core; a virtual machine may
stop as a whole. Neither is caused by the code that is checked. The kernel counts the
time that each thread ran and waited (Linux with CONFIG_SCHEDSTATS; unknown elsewhere).
A stop of the machine shows in a wait that ends late.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")
_NS = 1e9
_ASLEEP = "SIZX"  # states of a thread that waits for others, or has ended
_LATE_S = 0.2  # on a healthy machine a wait may end this late


@dataclass(frozen=True, slots=True)
class Turns:
    """Seconds since the last look; of each, that of the thread with the most."""

    ran_s: float = 0.0  # on a core
    waited_s: float = 0.0  # for a core


class Starvation:
    """CPU time of the processes of one job."""

    def __init__(self) -> None:
        self._before: dict[str, Turns] = {}  # by thread

    def look(self, pids: Iterable[int]) -> Turns | None:
        """Returns the CPU time since the last look; None where it is not counted.

        A thread that waits in a collective does not wait for a core: a crew that hangs
        there is not starved.
        """
        now = {path: turns for pid in pids for path, turns in _turns(pid)}
        known = [(turns, self._before.get(path, turns)) for path, turns in now.items()]
        self._before = now
        if not now:
            return None
        return Turns(
            ran_s=max(turns.ran_s - before.ran_s for turns, before in known),
            waited_s=max(turns.waited_s - before.waited_s for turns, before in known),
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


def _turns(pid: int) -> Iterable[tuple[str, Turns]]:
    """Yields every thread of a process with its CPU time since it began."""
    for path, text in _of_threads(pid, "schedstat"):
        with contextlib.suppress(ValueError, IndexError):
            ran, waited = text.split()[:2]
            yield path, Turns(int(ran) / _NS, int(waited) / _NS)


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
