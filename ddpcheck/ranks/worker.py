"""One rank process: joins its process group, runs jobs, exits by `os._exit`.

User code runs here; only the target's import runs before, in the fork server. The pool
notices whatever that code does: an exception is sent as data, a death shows in the
sentinel, a hang at the deadline.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import gc
import importlib
import multiprocessing
import os
import resource
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from ddpcheck.errors import raised
from ddpcheck.errors.problem import UsageError
from ddpcheck.ranks import processes
from ddpcheck.ranks.messages import Job, Journal, Message, Raised, Seat, set_pause_file
from ddpcheck.ranks.server import preload
from ddpcheck.ranks.server.leftovers import Before

_LARGE = 512 << 20  # bytes resident: twice what importing torch takes
# The unit of ru_maxrss in bytes.
_MAXRSS_UNIT = 1 if sys.platform == "darwin" else 1024
_IDLE_S = 0.02  # without a next job
_GROUP_S = 1800.0  # the default timeout of a process group in torch


@dataclass(frozen=True, slots=True)
class Context:
    """The first argument of a job function: its seat, and a way to send events.

    Events sent by `emit` survive the death of the rank. `keep` makes what the process
    has now, a group say, no leftover of this job.
    """

    seat: Seat
    emit: Callable[[Any], None]
    keep: Callable[[], None] = lambda: None


def rank_main(connection: Connection, seat: Seat) -> None:
    """Runs jobs from `connection` until it closes; never returns."""
    code, is_seated = 1, False
    try:
        _tie_to_parent()
        _keep_sockets_in(seat.folder)
        # Contains the target's folder, for lazy imports and for child processes.
        sys.path[:] = dict.fromkeys([*preload.SEARCH, *sys.path])
        _avoid_preemption()
        _open_files(seat)
        join_group(seat)
        connection.send(Message(kind="ready", payload=os.getpid()))
        is_seated = True
        code = _work(connection, seat)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        code = 0  # the tool has exited
    except Exception as error:  # noqa: BLE001 (sent to the pool)
        kind: Any = "raised" if is_seated else "unseated"
        connection.send(Message(kind=kind, payload=describe(error)))
    finally:
        # No atexit handlers, no thread joins, no destructors of DDP or gloo: each of
        # them is known to hang or abort now and then.
        os._exit(code)


def _work(connection: Connection, seat: Seat) -> int:
    journal = Journal(Path(seat.folder) / f"{seat.name}.journal")
    before, own_pid, is_first = Before(), os.getpid(), True

    def keep() -> None:
        nonlocal before
        before = Before()

    context = Context(seat=seat, emit=journal.write, keep=keep)
    while True:
        job: Job | None = connection.recv()
        if job is None:
            return 0
        journal.clear()
        answer = _do(job, context)
        if os.getpid() != own_pid:
            return 0  # a child that user code forked and let run on
        connection.send(replace(answer, leftovers=tuple(before.leftovers())))
        is_large = _is_large()
        # Takes half a millisecond, as all objects from before the fork are frozen. It
        # is skipped between small jobs that follow at once.
        if is_first or is_large or not connection.poll(_IDLE_S):
            gc.collect()
        if is_first:
            gc.freeze()  # also what the first job imported and cached
            is_first = False
        if is_large:
            _give_back_memory()
        if seat.device != "cpu":
            from ddpcheck.ranks import devices  # noqa: PLC0415

            devices.free_memory()


def _is_large() -> bool:
    """Returns whether this process uses much memory, as after a large model."""
    if resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _MAXRSS_UNIT <= _LARGE:
        return False  # it never was large; this needs no file
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except OSError:  # no Linux
        return False
    return pages * os.sysconf("SC_PAGE_SIZE") > _LARGE


def _give_back_memory() -> None:
    """Returns freed memory to the kernel; glibc would keep most of it."""
    with contextlib.suppress(OSError, AttributeError):  # no glibc
        ctypes.CDLL(None).malloc_trim(0)


def _do(job: Job, context: Context) -> Message:
    module, name = job.function.split(":")
    try:
        function = getattr(importlib.import_module(module), name)
        return Message(kind="done", payload=function(context, **job.arguments))
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 (sys.exit in user code included)
        return Message(kind="raised", payload=describe(error))


def describe(error: BaseException) -> Raised:
    """Returns an exception as data, with the user's innermost frame.

    For a file that cannot be imported, that is the exception that the file raised.
    """
    is_import = isinstance(error, UsageError) and error.problem.slug == "target-import"
    if is_import and error.__cause__ is not None:
        error = error.__cause__
    return Raised(
        type_name=type(error).__name__,
        message=raised.text_of(error),
        # Our own frames above a sys.exit help nobody.
        stack=raised.stack(error)
        if isinstance(error, SystemExit)
        else raised.whole_stack(error),
        where=raised.users_place(error),
    )


def _tie_to_parent() -> None:
    """Makes this process die with the fork server, which dies with the tool."""
    processes.kill_with_parent()
    # A process group of its own: Ctrl-C goes to the tool alone, and children that
    # user code leaves behind can be killed with the rank.
    os.setpgid(0, 0)
    # Every child of a fork server inherits the write end of the pipe by which the
    # server notices that its user is gone; a hung rank would keep the server alive.
    inherited: Any = forkserver._forkserver  # noqa: SLF001
    if inherited._forkserver_alive_fd is not None:  # noqa: SLF001
        os.close(inherited._forkserver_alive_fd)  # noqa: SLF001
    # Child processes of the target get a fork server of their own.
    inherited.__init__()
    # By default a child of a fork server starts its children by a fork server too: the
    # workers of a DataLoader would then lack what the target has imported.
    multiprocessing.set_start_method(None, force=True)


def _keep_sockets_in(folder: str) -> None:
    """Makes multiprocessing create its sockets in the session's folder.

    They are removed with it, and their path is short enough.
    """
    multiprocessing.current_process()._config["tempdir"] = folder  # type: ignore[attr-defined]  # noqa: SLF001


def _avoid_preemption() -> None:
    """Keeps a thread that wakes from preempting others, here and in later threads.

    Ranks on few cores wake each other with every message of a collective, and each
    would preempt one that is about to send: with this, eight ranks on two cores train
    four times as fast.
    """
    with contextlib.suppress(AttributeError, OSError):  # no Linux; forbidden
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def _open_files(seat: Seat) -> None:
    folder = Path(seat.folder)
    preload.FOLDER = folder
    preload.CREW = seat.name.rsplit("-", 1)[0]
    preload.redirect_output(folder / f"{seat.name}.log")
    set_pause_file(folder / seat.name)
    stack = (folder / f"{seat.name}.stack").open("w", encoding="utf-8")
    faulthandler.register(processes.STACK, file=stack, all_threads=True)
    # Not to stderr, whose last lines are shown in reports.
    faulthandler.enable(file=stack)


def group_s(seat: Seat) -> float:
    """Returns the seconds that an exchange may take.

    The pool's deadline comes first: it has the stacks. Later jobs may have more time
    than the first.
    """
    return max(_GROUP_S, 2 * seat.timeout_s)


def leave_group() -> None:
    """Leaves the process group and removes its environment variables."""
    import torch.distributed as dist  # noqa: PLC0415

    dist.destroy_process_group()
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        os.environ.pop(name, None)


def join_group(seat: Seat) -> None:
    """Joins the process group of the seat's crew, if it has one."""
    # Inherited by the fork; the pool never imports it.
    if seat.world_size:
        import torch.distributed as dist  # noqa: PLC0415
    if (torch := sys.modules.get("torch")) is not None:
        torch.set_num_threads(1)
    if seat.world_size == 0:
        return
    local_rank, local_world_size = seat.local
    os.environ["RANK"], os.environ["LOCAL_RANK"] = str(seat.rank), str(local_rank)
    os.environ["WORLD_SIZE"] = str(seat.world_size)
    os.environ["LOCAL_WORLD_SIZE"] = str(local_world_size)
    if seat.meeting is not None:
        store = seat.meeting.store()
    else:
        crew = seat.name.rsplit("-", 1)[0]
        path = Path(seat.folder) / f"{crew}.store"
        store = dist.FileStore(str(path), seat.world_size)
    from ddpcheck.ranks import devices  # noqa: PLC0415

    if seat.device != "cpu" and (gpus := devices.count()):
        devices.use(seat.device, local_rank)
        # User code reads the index of its GPU here; several ranks may share one.
        os.environ["LOCAL_RANK"] = str(local_rank % gpus)
    dist.init_process_group(
        devices.backend(seat.device, local_world_size),
        store=store,
        rank=seat.rank,
        world_size=seat.world_size,
        timeout=timedelta(seconds=group_s(seat)),
    )
