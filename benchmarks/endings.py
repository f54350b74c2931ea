"""Seconds until nothing is left of what was ended in the middle of a run.

Usage: python benchmarks/endings.py

The target's ranks sleep, and each has started a child; then `ddpcheck`, or `pytest
--ddpcheck`, or the fork server of one of them alone, gets a signal. What is waited for:
every process of its session and its folder in shared memory.
"""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

TARGET = """\
import subprocess, time
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Linear(4, 3)
batch = torch.randn(8, 4), torch.arange(8) % 3
def loss(output, target):
    if torch.distributed.is_initialized():
        child = subprocess.Popen(["sleep", "600"])
        open(f"mark{torch.distributed.get_rank()}", "w").close()
        child.wait()
    return nn.functional.cross_entropy(output, target)
"""
COMMANDS = {
    "ddpcheck": ("ddpcheck", "target.py", "--world-sizes", "2"),
    "pytest": ("pytest", "--ddpcheck", "target.py::ddp-W2", "-p", "no:cacheprovider"),
}
ENDINGS = {
    "SIGINT": (signal.SIGINT,),
    "SIGINT twice": (signal.SIGINT, signal.SIGINT),
    "SIGTERM": (signal.SIGTERM,),
    "SIGKILL": (signal.SIGKILL,),
    "SIGKILL of the fork server": (signal.SIGKILL,),
}


def left(session: int) -> list[str]:
    """Returns the processes of a session and the folders of its leader."""
    found = [str(p) for p in Path("/dev/shm").glob(f"ddpcheck-{session}-*")]  # noqa: S108
    for process in psutil.process_iter(["name", "status"]):
        try:
            is_ours = os.getsid(process.pid) == session
        except OSError:
            continue
        if is_ours and process.info["status"] != psutil.STATUS_ZOMBIE:
            found.append(process.info["name"])
    return found


def measure(command: str, name: str, folder: Path) -> tuple[float, int]:
    """Returns seconds until nothing is left, and the exit code."""
    (folder / "target.py").write_text(TARGET, encoding="utf-8")
    tool = subprocess.Popen(
        [sys.executable, "-m", *COMMANDS[command]],
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    while not all((folder / f"mark{rank}").exists() for rank in (0, 1)):
        time.sleep(0.01)
    pid = tool.pid
    if "server" in name:
        pid = next(
            child.pid
            for child in psutil.Process(pid).children()
            if "forkserver" in " ".join(child.cmdline())
        )
    started = time.perf_counter()
    for number in ENDINGS[name]:
        os.kill(pid, number)
    code = tool.wait()
    while left(tool.pid):
        time.sleep(0.005)
    return time.perf_counter() - started, code


def main() -> None:
    """Prints a line per command and ending."""
    for command, name in itertools.product(COMMANDS, ENDINGS):
        with tempfile.TemporaryDirectory() as folder:
            seconds, code = measure(command, name, Path(folder))
        row = f"{command:8}  {name:26}  {seconds:5.2f} s  exit code {code}"
        print(row, flush=True)


if __name__ == "__main__":
    main()
