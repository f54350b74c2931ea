"""Scripts that start their ranks themselves: the function runs in this process.

`torch.multiprocessing.spawn(fn, args, nprocs)` starts `nprocs` processes that each call
`fn(rank, *args)`. Under the check the ranks are there already, so each calls it itself,
with its own rank; the single process calls it with rank 0.

A script that has joined its process group starts processes for something else.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator
from typing import Any

import torch.multiprocessing as mp

from ddpcheck.ranks.messages import Seat
from ddpcheck.run.process.replacing import replaced
from ddpcheck.target.script import OtherNumberError


class _Ended:
    """What `spawn(join=False)` returns, of processes that have ended."""

    processes: tuple[Any, ...] = ()

    def join(self, *_: Any, **__: Any) -> bool:
        """Returns that all have ended."""
        return True

    def pids(self) -> list[int]:
        """Returns the numbers of the processes."""
        return []


@contextlib.contextmanager
def in_place(seat: Seat, has_joined: Callable[[], bool]) -> Iterator[None]:
    """Context in which what the script would spawn runs in this process.

    `has_joined`: whether the script has joined its process group.
    """

    def of(start: Callable[..., Any]) -> Callable[..., Any]:
        def starting(
            fn: Callable[..., Any],
            args: Any = (),
            nprocs: int = 1,
            join: bool = True,  # noqa: FBT001, FBT002 (as torch's)
            *rest: Any,
            **kwargs: Any,
        ) -> Any:
            if has_joined():
                return start(fn, args, nprocs, join, *rest, **kwargs)
            _check_number(seat, nprocs)
            fn(seat.rank, *args)
            return None if join else _Ended()

        return starting

    # The package has the function under the name of the module that defines it.
    module = importlib.import_module("torch.multiprocessing.spawn")
    names = "spawn", "start_processes"
    with contextlib.ExitStack() as stack:
        for owner in (mp, module):
            made = {name: of(getattr(owner, name)) for name in names}
            stack.enter_context(replaced(owner, **made))
        yield


def _check_number(seat: Seat, number: int) -> None:
    # A single process may have the number of ranks written down.
    if number == seat.world_size or (number > 0 and not seat.world_size):
        return
    raise OtherNumberError(str(number))
