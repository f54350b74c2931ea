"""Limits how many ranks of all sessions run on this machine at the same time.

n pytest workers with W ranks each would be n * W busy processes: on a machine with n
cores the ranks then wait for each other's cores, and correct code misses deadlines. So
a worker takes one slot per rank before a run and gives them back after it.

A slot is a byte of one file in the folder for temporary files, locked by
fcntl.lockf: the kernel frees it when its holder ends, and no fork inherits it. Byte 0
is the queue: a session that waits for slots holds it, so that runs of few ranks do not
overtake a run of many for ever.

A session never waits while it holds slots, so sessions cannot deadlock. It waits for
`PATIENCE_S` at most and then continues without slots: a stopped holder (SIGSTOP) must
not block everyone.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ddpcheck.errors.problem import usage_error

# Ranks wait for one another about half of the time, so cores * 2 keeps cores busy.
RANKS_PER_CORE = 2
PATIENCE_S = 600.0
VARIABLE = "DDPCHECK_MAX_RANKS"
_POLL_S = 0.005


@dataclass(slots=True)
class Budget:
    """The slots of this machine.

    `limit` is the number of slots; a run of more ranks takes all of them. Processes
    with different limits share the slots that both know.
    """

    limit: int
    path: Path
    patience_s: float = PATIENCE_S
    _held: set[int] = field(default_factory=set)
    _descriptor: int | None = None

    def try_take(self, ranks: int) -> tuple[int, ...] | None:
        """Returns slots for this many ranks, None if too few are free."""
        if not self._lock(0):
            return None
        try:
            return self._take(min(ranks, self.limit))
        finally:
            self._unlock(0)

    def take(self, ranks: int) -> tuple[int, ...]:
        """Waits for slots; returns them, or () after `patience_s`."""
        deadline = time.monotonic() + self.patience_s
        while not self._lock(0):
            if time.monotonic() > deadline:
                return ()
            time.sleep(_POLL_S)
        try:
            while (taken := self._take(min(ranks, self.limit))) is None:
                if time.monotonic() > deadline:
                    return ()
                time.sleep(_POLL_S)
            return taken
        finally:
            self._unlock(0)

    def give_back(self, slots: tuple[int, ...]) -> None:
        """Frees slots."""
        for slot in slots:
            self._unlock(slot)
            self._held.discard(slot)

    @contextlib.contextmanager
    def taken(self, ranks: int) -> Iterator[None]:
        """Holds slots for this many ranks while the context lasts."""
        slots = self.take(ranks)
        try:
            yield
        finally:
            self.give_back(slots)

    def close(self) -> None:
        """Frees all slots; a later `take` opens the file again."""
        if self._descriptor is not None:
            os.close(self._descriptor)
        self._descriptor = None
        self._held.clear()

    def _take(self, ranks: int) -> tuple[int, ...] | None:
        taken: list[int] = []
        for slot in range(1, self.limit + 1):
            if len(taken) == ranks:
                break
            # The kernel would grant this process a lock that it already holds.
            if slot not in self._held and self._lock(slot):
                taken.append(slot)
        if len(taken) < ranks:
            for slot in taken:
                self._unlock(slot)
            return None
        self._held.update(taken)
        return tuple(taken)

    def _lock(self, slot: int) -> bool:
        descriptor = self._file()
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, slot)
        except (BlockingIOError, PermissionError):  # POSIX allows either
            return False
        return True

    def _unlock(self, slot: int) -> None:
        fcntl.lockf(self._file(), fcntl.LOCK_UN, 1, slot)

    def _file(self) -> int:
        if self._descriptor is None:
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            self._descriptor = os.open(self.path, flags, 0o600)
        return self._descriptor


def of_this_machine() -> Budget | None:
    """Returns the budget that all sessions of this user share.

    DDPCHECK_MAX_RANKS sets its size; by default two ranks per core. None if the
    folder for temporary files supports no file locks.

    Raises:
        UsageError: option-value.
    """
    path = Path(tempfile.gettempdir()) / f"ddpcheck-ranks-{os.getuid()}.lock"
    budget = Budget(limit=_limit(), path=path)
    try:
        budget.try_take(0)
    except OSError:
        return None
    return budget


def _limit() -> int:
    """Returns how many ranks may run at a time.

    Raises:
        UsageError: option-value.
    """
    chosen = os.environ.get(VARIABLE, "")
    if not chosen:
        return RANKS_PER_CORE * cores()
    if chosen.isdecimal() and int(chosen) > 0:
        return int(chosen)
    raise usage_error(
        slug="option-value",
        message=f"{VARIABLE} is not possible",
        expected="a number of ranks, 1 or more",
        found=chosen,
        fix=f"unset {VARIABLE}: two ranks per core then run at a time",
    )


def cores() -> int:
    """Returns the cores that this process may use, not all that the machine has."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
