"""One more case of a test suite: this engine against the ways that others take.

    python benchmarks/peers.py [--world-sizes 2,8] [--cases 100]

Needs `pip install expecttest`, which PyTorch's own test classes import. Every case is
the same work: three steps of `mlp.py` under DistributedDataParallel in float64, the
outputs, gradients and weights of each compared with the single-process run, made once
per process and suite. Per case, in ms:

    warm         ddpcheck on ranks that are up (it compares losses and buffers, too)
    continuous   torch.testing's MultiProcContinuousTest, its processes already up
    per-test     torch.testing's MultiProcessTestCase, new processes for each test
    spawn        torch.multiprocessing.spawn
    torchrun     python -m torch.distributed.run --standalone
    cold         `ddpcheck mlp.py`, the whole command with its reference

`warm` is `--cases` cases one after the other; the median, and the ratio to it. `warm`
and `continuous` take turns, ROUNDS times, as a machine is never as fast twice.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from warm import (
    TARGET,
    measure,
    train_spawned,
    warm_case,
)

from ddpcheck.checking.opening import PRELOAD_MODULES
from ddpcheck.ranks.pool import Pool, Preload
from ddpcheck.run.session.session import Session
from ddpcheck.target.target import TargetRef

FOLDER = Path(__file__).parent
FEW = 3
ROUNDS = 5


def main() -> None:
    """Prints one row per world size and way."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--world-sizes", default="2,8")
    parser.add_argument("--cases", type=int, default=100)
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.rank:
        train_under_torchrun()
        return
    print(f"{'way':<16}  {'median ms':>9}  {'over warm':>9}")
    for world_size in map(int, options.world_sizes.split(",")):
        taken_warm: list[float] = []
        continuous: list[float] = []
        for _ in range(ROUNDS):
            taken_warm += measure_warm(world_size, options.cases)
            continuous += tests("continuous", world_size, options.cases)
        warm = statistics.median(taken_warm)
        for name, taken in {
            "warm": taken_warm,
            "continuous": continuous,
            "per-test": tests("per-test", world_size, FEW),
            "spawn": measure(lambda size=world_size: train_spawned(size), FEW),  # type: ignore[misc]
            "torchrun": measure(lambda size=world_size: torchrun(size), FEW),  # type: ignore[misc]
            "cold": measure(lambda size=world_size: cold(size), FEW),  # type: ignore[misc]
        }.items():
            median = statistics.median(taken)
            label = f"{name} W={world_size}"
            print(f"{label:<16}  {median:9.1f}  {median / warm:9.1f}", flush=True)


def measure_warm(world_size: int, cases: int) -> list[float]:
    """Returns the milliseconds of each case on ranks that are up."""
    what = Preload(
        modules=PRELOAD_MODULES,
        call="ddpcheck.run.jobs:load_in_server",
        arguments={"path": TARGET, "names": []},
    )
    with Pool(what) as pool:
        pool.wait_for_imports()
        case = warm_case(Session(pool, TargetRef(path=TARGET)), world_size)
        case()  # forks the ranks
        return measure(case, cases)


def tests(kind: str, world_size: int, cases: int) -> list[float]:
    """Returns the milliseconds of each test of one of torch.testing's classes."""
    command = [sys.executable, str(FOLDER / "peer_tests.py")]
    command += [kind, str(world_size), str(cases)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return [1000 * float(s) for s in json.loads(done.stdout.splitlines()[-1])]


def torchrun(world_size: int) -> None:
    """Trains in the processes of a launcher."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    ranks = ["--nproc-per-node", str(world_size), __file__, "--rank"]
    subprocess.run(launcher + ranks, check=True, capture_output=True)


def cold(world_size: int) -> None:
    """Runs the whole command."""
    options = ["--world-sizes", str(world_size), "--modes", "ddp", "-q"]
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "ddpcheck", TARGET, *options]
        subprocess.run(command, check=True, capture_output=True, cwd=folder)


def train_under_torchrun() -> None:
    """Trains as one of the launcher's ranks."""
    from peer_tests import train_as_rank  # noqa: PLC0415 (needs expecttest)

    dist.init_process_group("gloo")
    train_as_rank()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
