"""Jobs that need no torch: a fork server without it is up in a tenth of a second."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from ddpcheck.ranks import messages
from ddpcheck.ranks.worker import Context


def pid(context: Context) -> int:
    """Returns the rank's process id."""
    del context
    return os.getpid()


def tunables(context: Context) -> str | None:
    """Returns the settings of glibc's memory in the rank's process."""
    del context
    return os.environ.get("GLIBC_TUNABLES")


def wait(context: Context) -> None:
    """Waits for longer than any test."""
    del context
    time.sleep(600)


def wait_with_child(context: Context, *, path: str) -> None:
    """Starts a child, emits its number, and goes on for long."""
    del context
    child = subprocess.Popen(["sleep", "600"])  # noqa: S607
    part = Path(path).with_suffix(".part")
    part.write_text(str(child.pid), encoding="utf-8")
    part.rename(path)
    time.sleep(600)


def sleep(context: Context, *, seconds: float) -> None:
    """Sleeps."""
    del context
    time.sleep(seconds)


def works_on_a_busy_core(context: Context, *, cpu_s: float, others: int) -> float:
    """Computes on a core with as many others; returns the seconds that it took."""
    del context
    started, cores = time.monotonic(), os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    busy = [sys.executable, "-S", "-c", "while True: pass"]
    children = [subprocess.Popen(busy) for _ in range(others)]
    try:
        while time.process_time() < cpu_s:
            pass
    finally:
        for child in children:
            child.kill()
            child.wait()
        os.sched_setaffinity(0, cores)
    return time.monotonic() - started


def pauses_then_works(context: Context, *, pause_s: float, work_s: float) -> str:
    """Imports for a while, as far as the pool knows, then works."""
    del context
    with messages.paused():
        time.sleep(pause_s)
    time.sleep(work_s)
    return "done"


def imported(context: Context, *, prefix: str) -> list[str]:
    """Returns the names of this process's modules with a prefix."""
    del context
    return sorted(name for name in sys.modules if name.startswith(prefix))
