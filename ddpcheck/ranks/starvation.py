"""What ranks had of cores: time in which they could not run is no fault of theirs.

A machine with more work than cores lets a process wait for a core; a virtual machine
may stand still as a whole. Neither says anything about the code that is checked. The
kernel counts the first per thread (Linux with CONFIG_SCHEDSTATS; nothing is known
elsewhere), as it does what they ran; the second shows in a wait that ends late.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")
_NS = 1e9
_LATE_S = 0.2  # within this a wait may end late on a machine that is well


@dataclass(frozen=True, slots=True)
class Turns:
    """Seconds since the last look, of the thread that has most of each."""

    ran_s: float = 0.0  # on a core
    waited_s: float = 0.0  # for a core


class Starvation:
    """What the processes of one job have had of cores."""

    def __init__(self) -> None:
        self._before: dict[str, Turns] = {}  # by thread

    def look(self, pids: Iterable[int]) -> Turns | None:
        """Returns what threads had since the last look; None where nobody counts.

        One that waits for something else, as in a collective, waits for no core: a crew
        that hangs there is not starved.
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


def standstill(asked_s: float, took_s: float) -> float:
    """Returns how long nothing ran, from a wait of at most `asked_s` seconds."""
    late = took_s - asked_s
    return late if late > _LATE_S else 0.0


def _turns(pid: int) -> Iterable[tuple[str, Turns]]:
    """Yields every thread of a process with what it has had since it began."""
    paths: list[Path] = []
    with contextlib.suppress(OSError):  # the process has ended
        paths = list((_PROC / str(pid) / "task").glob("*/schedstat"))
    for path in paths:
        with contextlib.suppress(OSError, ValueError, IndexError):  # the thread has
            ran, waited = path.read_text(encoding="ascii").split()[:2]
            yield str(path), Turns(int(ran) / _NS, int(waited) / _NS)
