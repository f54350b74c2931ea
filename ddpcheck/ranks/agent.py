"""Serves rank 0 in any other process of a launcher's group.

Rank 0 decides everything. This process runs no user code either: its fork server
starts the rank process, which does the jobs that rank 0 sends.
"""

from __future__ import annotations

import time
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from ddpcheck.ranks import folder as folders
from ddpcheck.ranks.crew import LocalRank
from ddpcheck.ranks.hosts import Ended
from ddpcheck.ranks.messages import Job, Seat
from ddpcheck.ranks.pool import Pool

_STACK_WAIT_S = 1.0


class Agent:
    """Serves rank 0 on one connection."""

    def __init__(self, connection: Connection, pool: Pool) -> None:
        self._connection, self.pool = connection, pool
        self._ranks: dict[str, LocalRank] = {}
        self._running: set[str] = set()

    def serve(self) -> int | None:
        """Returns the exit code that rank 0 sends, None if its connection is lost."""
        try:
            while True:
                handles: list[Any] = [self._connection]
                for name in self._running:
                    handles += self._ranks[name].handles()
                if self._connection in wait(handles):
                    message = self._connection.recv()
                    if message[0] == "end":
                        return int(message[1])
                    getattr(self, f"_{message[0]}")(*message[1:])
                for name in sorted(self._running):
                    self._look_at(name)
        except (EOFError, OSError):
            return None

    def _look_at(self, name: str) -> None:
        rank = self._ranks[name]
        while (message := rank.next_message()) is not None:
            if message.kind != "ready":
                self._send_end(name, message=message)
                return
        if not rank.is_alive():
            self._send_end(name, exit_code=rank.exit_code, stack=rank.stack_so_far())

    def _send_end(self, name: str, **what: Any) -> None:
        self._running.discard(name)
        self._connection.send(self._ended(name, **what))

    def _ended(self, name: str, **what: Any) -> Ended:
        rank = self._ranks[name]
        return Ended(name=name, progress=rank.progress(), stderr=rank.stderr(), **what)

    def _sees(self, folders: list[str]) -> None:
        seen = (folder for folder in folders if Path(folder).is_dir())
        self._connection.send(next(seen, ""))

    def _place(self, size: int) -> None:
        self._connection.send(str(folders.place(self.pool.folder, size)))

    def _file(self, path: str, chunk: bytes) -> None:
        with Path(path).open("ab") as stream:
            stream.write(chunk)

    def _written(self) -> None:
        self._connection.send("written")

    def _open(self, seat: Seat) -> None:
        # Only one crew at a time is as large as the group.
        for name in list(self._ranks):
            self._kill(name)
        self._ranks.clear()
        here = replace(seat, folder=str(self.pool.folder))
        self._ranks[seat.name] = self.pool.spawn(here)

    def _job(self, name: str, job: Job) -> None:
        self._running.add(name)
        self._ranks[name].send(job)

    def _ask_stack(self, name: str) -> None:
        self._ranks[name].ask_stack()

    def _stack(self, name: str) -> None:
        self._running.discard(name)
        stack = self._ranks[name].stack(time.monotonic() + _STACK_WAIT_S)
        self._connection.send(self._ended(name, is_reply=True, stack=stack))

    def _kill(self, name: str) -> None:
        self._running.discard(name)
        if name in self._ranks:
            self._ranks[name].kill()
            self._ranks[name].reap()
