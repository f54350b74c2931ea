"""What processes had of cores, where they end while they are looked at."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ddpcheck.ranks.processes import Starvation, is_any_awake


def test_process_that_ends_while_it_is_looked_at_has_no_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def ended(path: Path, _: str) -> Iterator[Path]:
        yield from ()
        raise ProcessLookupError(3, "No such process", str(path))

    monkeypatch.setattr(Path, "glob", ended)
    assert Starvation().look([os.getpid()]) is None


# Under a name with which it looks as if it ran.
SLEEPS = """
open("/proc/self/comm", "w").write("x) R (")
print(flush=True)
input()
"""


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[str]]:
    """A process that waits for a line."""
    with subprocess.Popen(
        [sys.executable, "-c", SLEEPS],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        process.kill()


def _waits(pid: int) -> bool:
    """Returns whether it waits, a moment after it has announced it."""
    ended = time.monotonic() + 10
    while is_any_awake([pid]) and time.monotonic() < ended:
        time.sleep(0.01)
    return not is_any_awake([pid])


def test_process_that_waits_is_asleep_and_this_one_is_not(
    sleeper: subprocess.Popen[str],
) -> None:
    assert _waits(sleeper.pid)
    assert is_any_awake([sleeper.pid, os.getpid()])


def test_process_that_was_stopped_would_go_on(sleeper: subprocess.Popen[str]) -> None:
    assert _waits(sleeper.pid)
    sleeper.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, sleeper.pid, os.WSTOPPED)
    assert is_any_awake([sleeper.pid])


def test_process_that_has_ended_is_not_awake(sleeper: subprocess.Popen[str]) -> None:
    sleeper.kill()
    sleeper.wait()
    assert not is_any_awake([sleeper.pid])
