"""Time in which ranks could not run, for which a deadline must not blame them.

A machine with more work than cores lets a process wait for a core; a virtual machine
may stand still as a whole. Neither says anything about the code that is checked. The
kernel counts the first per thread (Linux with CONFIG_SCHEDSTATS; nothing is known
elsewhere); the second shows in a wait that ends late.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path

_PROC = Path("/proc")
_NS = 1e9
_LATE_S = 0.2  # within this a wait may end late on a machine that is well


class Starvation:
    """What the processes of one job have waited for cores."""

    def __init__(self) -> None:
        self._waited: dict[str, float] = {}  # by thread

    def look(self, pids: Iterable[int]) -> float:
        """Returns the seconds since the last look that a thread waited, the longest.

        One that waits for something else, as in a collective, does not count: a crew
        that hangs there is not starved.
        """
        now = {path: s for pid in pids for path, s in _waits(pid)}
        longest = max(
            (s - self._waited.get(path, s) for path, s in now.items()), default=0.0
        )
        self._waited = now
        return max(0.0, longest)


def standstill(asked_s: float, took_s: float) -> float:
    """Returns how long nothing ran, from a wait of at most `asked_s` seconds."""
    late = took_s - asked_s
    return late if late > _LATE_S else 0.0


def _waits(pid: int) -> Iterable[tuple[str, float]]:
    """Yields every thread of a process with the seconds it has waited for a core."""
    for path in (_PROC / str(pid) / "task").glob("*/schedstat"):
        with contextlib.suppress(OSError, ValueError, IndexError):  # it has ended
            yield str(path), int(path.read_text(encoding="ascii").split()[1]) / _NS
