"""Slots of the machine: shared by processes, freed by death."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest

from ddpcheck.errors.problem import UsageError
from ddpcheck.ranks import budget
from ddpcheck.ranks.budget import Budget

HOLDER = """
import sys, time
from pathlib import Path
from ddpcheck.ranks.budget import Budget
held = Budget(limit=4, path=Path(sys.argv[1])).take(int(sys.argv[2]))
print(len(held), flush=True)
sys.stdin.read()
"""


def _holder(path: Path, ranks: int) -> subprocess.Popen[str]:
    """Returns a process that holds slots until its standard input ends."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path), str(ranks)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == f"{ranks}\n"
    return process


def _end(process: subprocess.Popen[str]) -> None:
    process.communicate(timeout=30)


def test_slots_of_one_process_are_given_once(tmp_path: Path) -> None:
    mine = Budget(limit=3, path=tmp_path / "lock")
    first = mine.try_take(2)
    assert first == (1, 2)
    assert mine.try_take(2) is None
    assert mine.try_take(1) == (3,)
    mine.give_back(first)
    assert mine.try_take(3) is None
    mine.close()


def test_run_of_more_ranks_than_slots_takes_all(tmp_path: Path) -> None:
    mine = Budget(limit=2, path=tmp_path / "lock")
    with mine.taken(16):
        assert mine.try_take(1) is None
    assert mine.try_take(1) == (1,)
    mine.close()
    assert mine.try_take(2) == (1, 2)
    mine.close()


def test_other_process_holds_its_slots_until_it_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    other = _holder(path, 3)
    mine = Budget(limit=4, path=path)
    assert mine.try_take(2) is None
    assert mine.try_take(1) == (4,)
    other.send_signal(signal.SIGKILL)
    _end(other)
    assert mine.try_take(3) == (1, 2, 3)
    mine.close()


def test_waiting_ends_when_slots_are_given_back(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    other = _holder(path, 4)
    timer = threading.Timer(0.3, _end, [other])
    timer.start()
    mine = Budget(limit=4, path=path)
    started = time.monotonic()
    assert len(mine.take(2)) == 2
    assert time.monotonic() - started > 0.1
    timer.join()
    mine.close()


def test_patience_ends_too(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    other = _holder(path, 4)
    mine = Budget(limit=4, path=path, patience_s=0.05)
    assert mine.take(1) == ()
    _end(other)
    mine.close()


def test_size_is_two_per_core_unless_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(budget.VARIABLE, raising=False)
    cores = len(os.sched_getaffinity(0))
    assert _limit() == 2 * cores
    monkeypatch.setenv(budget.VARIABLE, "3")
    assert _limit() == 3


@pytest.mark.parametrize("chosen", ["0", "-1", "four", "2.5"])
def test_size_that_is_none_is_reported(
    chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(budget.VARIABLE, chosen)
    with pytest.raises(UsageError) as caught:
        budget.of_this_machine()
    assert str(caught.value) == (
        "ddpcheck: DDPCHECK_MAX_RANKS is not possible [option-value]\n"
        "  expected   a number of ranks, 1 or more\n"
        f"  found      {chosen}\n"
        "  fix        unset DDPCHECK_MAX_RANKS: two ranks per core then run at a time\n"
        "  more       ddpcheck --explain option-value"
    )


def _limit() -> int:
    made = budget.of_this_machine()
    assert made is not None
    made.close()
    return made.limit


def test_folder_that_takes_no_file_is_no_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    assert budget.of_this_machine() is None
