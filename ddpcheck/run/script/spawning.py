"""Scripts that start their ranks themselves: the function runs in this process.

`torch.multiprocessing.spawn(fn, args, nprocs)` starts `nprocs` processes that each call
`fn(rank, *args)`. Under the check the ranks are there already, so each calls it itself,
with its own rank; the single process calls it with rank 0.

Others make a `Process` for each rank and start it. One whose function names
`init_process_group`, itself or in a function of the user's that it uses, is a rank:
the one that is started as number `rank` runs here, when the script first waits for one
of them, for then their number is known.

A script that has joined its process group starts processes for something else.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
from collections.abc import Callable, Iterator
from multiprocessing.process import BaseProcess
from types import FunctionType, ModuleType
from typing import Any

import torch.multiprocessing as mp

from ddpcheck.errors import code_origin
from ddpcheck.ranks.messages import Seat
from ddpcheck.run.observe.used_names import names_in
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
            check_number(seat, nprocs)
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
        stack.enter_context(_processes_in_place(seat, has_joined))
        yield


_JOINS = "init_process_group"


class _Started:
    """The processes of ranks that the script has started; one of them runs here."""

    def __init__(self, seat: Seat) -> None:
        self.seat = seat
        self.processes: list[Any] = []
        self.has_run = False

    def has(self, process: Any) -> bool:
        """Returns whether it is one of them."""
        return any(process is one for one in self.processes)

    def run(self) -> None:
        """Runs that of this rank, once."""
        if self.has_run:
            return
        self.has_run = True
        check_number(self.seat, len(self.processes))
        self.processes[self.seat.rank].run()


@contextlib.contextmanager
def _processes_in_place(seat: Seat, has_joined: Callable[[], bool]) -> Iterator[None]:
    """Context in which the process of this rank runs here, and those of others not."""
    started = _Started(seat)
    start, join, is_alive = (
        vars(BaseProcess)[name] for name in ("start", "join", "is_alive")
    )
    exitcode = vars(BaseProcess)["exitcode"]

    def starting(process: Any) -> None:
        if has_joined() or started.has_run or not _is_rank(process):
            start(process)
            return
        started.processes.append(process)

    def joining(process: Any, timeout: float | None = None) -> None:
        if started.has(process):
            started.run()
        else:
            join(process, timeout)

    def living(process: Any) -> bool:
        if started.has(process):
            started.run()
            return False
        return bool(is_alive(process))

    def ended(process: Any) -> int | None:
        if started.has(process):
            return 0 if started.has_run else None
        code: int | None = exitcode.fget(process)
        return code

    with replaced(
        BaseProcess,
        start=starting,
        join=joining,
        is_alive=living,
        exitcode=property(ended),
    ):
        yield


def _is_rank(process: Any) -> bool:
    """Returns whether what a process runs joins a process group."""
    # A class has its own `run`; that of the standard library calls the target, which
    # Python names nowhere else: without it, such a process is started.
    functions = type(process).run, getattr(process, "_target", None)
    return any(_joins(one, set()) for one in functions)


def _joins(function: Any, seen: set[int]) -> bool:
    while isinstance(function, functools.partial):
        function = function.func
    function = inspect.unwrap(getattr(function, "__func__", function))
    if not isinstance(function, FunctionType) or id(function) in seen:
        return False
    seen.add(id(function))
    code = function.__code__
    if not code_origin.is_users(code.co_filename):
        return False
    names = names_in(code)
    return _JOINS in names or any(
        _joins(other, seen) for other in _reached(function, names)
    )


def _reached(function: FunctionType, names: set[str]) -> Iterator[Any]:
    """Yields the functions that a function may call, by the names in its code."""
    for name in names & function.__globals__.keys():
        value = function.__globals__[name]
        yield value
        if isinstance(value, ModuleType):
            yield from (getattr(value, member, None) for member in names)
        elif isinstance(value, type):
            yield from vars(value).values()


def check_number(seat: Seat, number: int) -> None:
    """Raises OtherNumberError where a script starts another number than is checked."""
    # A single process may have the number of ranks written down.
    if number == seat.world_size or (number > 0 and not seat.world_size):
        return
    raise OtherNumberError(str(number))
