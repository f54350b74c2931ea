"""A rank that died is dead, also where the fork server is late to say so."""

from __future__ import annotations

import threading
import time
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

from ddpcheck.ranks.crew import LocalRank, unseated_ranks
from ddpcheck.ranks.messages import Outcome, Seat


class _Process:
    """A process whose end the server reports `late_s` after its pipe has closed."""

    def __init__(self, late_s: float) -> None:
        self.ended = threading.Event()
        self.timer = threading.Timer(late_s, self.ended.set)
        self.sentinel, self.pid = 0, None
        self.joins = 0

    def is_alive(self) -> bool:
        return not self.ended.is_set()

    def join(self, timeout: float) -> None:
        self.joins += 1
        self.ended.wait(timeout)


class _Server:
    def __init__(self, process: _Process) -> None:
        self.process = process

    def spawn(self, _: Any, arguments: tuple[Any, ...]) -> _Process:
        arguments[0].close()
        self.process.timer.start()
        return self.process


def _rank(process: _Process, folder: Path) -> LocalRank:
    seat = Seat(name="rank", rank=1, world_size=2, folder=str(folder), timeout_s=9.0)
    server: Any = _Server(process)
    return LocalRank(server, seat)


def test_rank_that_hung_up_is_dead_once_the_server_reports_it(tmp_path: Path) -> None:
    process = _Process(late_s=0.2)
    rank = _rank(process, tmp_path)
    assert rank.next_message() is None
    assert not rank.is_alive()


def test_rank_whose_pipe_is_open_is_not_waited_for(tmp_path: Path) -> None:
    process = _Process(late_s=0.2)
    rank = _rank(process, tmp_path)
    rank.connection, theirs = Pipe()
    assert rank.next_message() is None
    assert rank.is_alive()
    assert process.joins == 0
    theirs.close()
    process.ended.wait(5)


def test_rank_that_takes_its_seat_while_another_dies_is_no_missing_one() -> None:
    seated, standing = Outcome(rank=1, kind="died"), Outcome(rank=0, kind="unseated")
    assert unseated_ranks([standing, seated]) == []
    assert standing.kind == "stopped"


def test_rank_that_finds_no_seat_is_missing() -> None:
    standing = Outcome(rank=0, kind="unseated")
    assert unseated_ranks([standing, Outcome(rank=1, kind="raised")]) == [standing]
    assert standing.kind == "unseated"


def test_stack_of_a_death_stays_where_the_rank_was_asked_meanwhile(
    tmp_path: Path,
) -> None:
    process = _Process(late_s=0.0)
    rank = _rank(process, tmp_path)
    path = tmp_path / "rank.stack"
    path.write_text("Current thread\n  in waits\n", encoding="utf-8")
    with path.open("a", encoding="utf-8") as file:
        file.write("Fatal Python error: Aborted\n  in dies\n\nExtension modules: a\n")
    assert rank.stack(time.monotonic() + 9) == "Current thread\n  in waits\n"
    assert rank.stack_so_far() == "Fatal Python error: Aborted\n  in dies\n"
