"""Jobs that go well and badly; called by name in real ranks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import ddpcheck
from ddpcheck.ranks.worker import Context


def pid(context: Context) -> int:
    """Returns the rank's process id."""
    del context
    return os.getpid()


def in_check(context: Context) -> tuple[bool, str]:
    """Returns what the rank, and a Python that it starts, say of in_check."""
    del context
    program = "import ddpcheck; print(ddpcheck.in_check())"
    said = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    return ddpcheck.in_check(), said.stdout


def add_up(context: Context, *, value: int) -> float:
    """Returns the sum over ranks of value + rank."""
    total = torch.tensor([float(value + context.seat.rank)])
    if context.seat.world_size:
        dist.all_reduce(total)
    return total.item()


def fail(context: Context, *, how: str, rank: int, emit: bool = False) -> str:
    """Goes wrong on one rank; the others wait for it."""
    if emit:
        context.emit({"rank": context.seat.rank})
    if context.seat.rank == rank:
        _go_wrong(how)
    if context.seat.world_size:
        dist.barrier()
    return "reached the end"


def _go_wrong(how: str) -> None:
    if how == "raise":
        message = "cannot go on"
        raise ValueError(message)
    if how == "exit":
        sys.exit(5)
    if how == "os._exit":
        os._exit(7)
    if how == "kill":
        sys.stderr.write("last words\n")
        sys.stderr.flush()
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "abort":
        os.abort()
    if how == "hang":
        time.sleep(600)
    if how == "stopped":
        os.kill(os.getpid(), signal.SIGSTOP)


def flood(context: Context, *, size_bytes: int) -> int:
    """Writes more than a pipe holds, from Python and from a child."""
    del context
    line = "x" * 99 + "\n"
    for _ in range(size_bytes // 100):
        sys.stdout.write(line)
        sys.stderr.write(line)
    sys.stdout.flush()
    subprocess.run([sys.executable, "-c", f"print('y' * {size_bytes})"], check=True)
    return size_bytes


def spawn_child(context: Context) -> int:
    """Leaves a child behind that would run for long."""
    del context
    return subprocess.Popen(["sleep", "600"]).pid  # noqa: S607


def unpicklable(context: Context) -> Any:
    """Returns what cannot be sent."""
    del context
    return lambda: None


def variables(context: Context) -> list[str]:
    """Returns what a launcher would set."""
    del context
    return [os.environ[name] for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK")]


def policies(context: Context) -> list[int]:
    """Returns the kernel's scheduling policy of every thread."""
    del context
    dist.all_reduce(torch.ones(1))
    threads = Path("/proc/self/task").iterdir()
    return [os.sched_getscheduler(int(thread.name)) for thread in threads]


def deed(context: Context, *, code: str) -> None:
    """Does what user code may do to its process."""
    del context
    exec(code, globals())  # noqa: S102 (ours)


def fork_and_go_on(context: Context) -> int:
    """Forks as user code might: the child returns from here, too."""
    context.emit("before")
    child = os.fork()
    if child == 0:
        time.sleep(0.2)
    context.emit("after")
    return child


def contents(context: Context, *, path: str) -> tuple[str, dict[str, bytes]]:
    """Returns the path that the rank was given, and the files `path.*` there."""
    del context
    found = sorted(Path(path).parent.glob(f"{Path(path).name}.*"))
    return path, {file.name: file.read_bytes() for file in found}
