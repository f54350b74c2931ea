"""Scripts that start a process for each rank: the one of this rank runs here."""

from __future__ import annotations

import functools
import multiprocessing as mp
import os
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch.distributed as dist

from ddpcheck.ranks.messages import Seat
from ddpcheck.run.script import spawning
from ddpcheck.target.script import OtherNumberError

CALLED: list[tuple[int, int]] = []  # (rank, process) of functions that ran here


def _setup() -> None:
    if not os.environ:
        dist.init_process_group("gloo")


def train(rank: int) -> None:
    """Is a rank: what it uses joins the process group."""
    _setup()
    CALLED.append((rank, os.getpid()))


def serve(rank: int) -> None:
    """Is no rank."""
    CALLED.append((rank, os.getpid()))


class Trains(mp.Process):
    """A rank as a class."""

    def run(self) -> None:
        """Trains."""
        train(7)


def _seat(rank: int, world_size: int) -> Seat:
    return Seat(
        rank=rank, world_size=world_size, folder="", name="script", timeout_s=1.0
    )


def _run(
    seat: Seat, processes: Sequence[Any], *, has_joined: bool = False
) -> list[int]:
    """Starts and joins the processes; returns the ranks that ran in this one."""
    CALLED.clear()
    with spawning.in_place(seat, lambda: has_joined):
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        assert [process.exitcode for process in processes] == [0] * len(processes)
        assert not any(process.is_alive() for process in processes)
    return [rank for rank, process in CALLED if process == os.getpid()]


def _processes(function: Callable[[int], None], count: int = 2) -> list[Any]:
    return [mp.Process(target=function, args=(rank,)) for rank in range(count)]


@pytest.mark.parametrize(("rank", "world_size"), [(0, 2), (1, 2), (0, 0)])
def test_process_of_this_rank_runs_here(rank: int, world_size: int) -> None:
    assert _run(_seat(rank, world_size), _processes(train)) == [rank]


def test_partial_and_class_are_ranks_too() -> None:
    assert _run(_seat(1, 2), _processes(functools.partial(train))) == [1]
    assert _run(_seat(0, 2), [Trains(), Trains()]) == [7]


def test_process_that_joins_no_group_is_started() -> None:
    assert _run(_seat(0, 2), _processes(serve)) == []


def test_process_of_a_script_that_has_joined_its_group_is_started() -> None:
    assert _run(_seat(0, 2), _processes(train), has_joined=True) == []


def test_other_number_of_processes_is_refused() -> None:
    with pytest.raises(OtherNumberError, match="3"):
        _run(_seat(0, 2), _processes(train, 3))
