"""A further case on warm ranks, against its own mathematics and against spawn.

    python benchmarks/warm.py [--world-sizes 2,8] [--repetitions 20] [--no-spawn]

Every row is the same work: three steps of `mlp.py` in float64. `plain` is a loop in
one process on the global batch, without any checking: the mathematics. `warm` is the
whole case as `ddpcheck` runs it, from the request to the compared result: sharding,
DistributedDataParallel, every gradient, weight and buffer against the reference.
`bare` is the training of that case alone, on the same ranks: what DDP itself takes.
`spawn` is that training in processes of `torch.multiprocessing.spawn`: outputs,
gradients and weights of each step compared. Wall time in ms: the median, and the
spread between quartiles.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import mlp
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ddpcheck.checking.opening import PRELOAD_MODULES
from ddpcheck.ranks.messages import Job
from ddpcheck.ranks.pool import Pool, Preload
from ddpcheck.ranks.worker import Context
from ddpcheck.run.session.session import Session
from ddpcheck.run.spec import RunSpec
from ddpcheck.target.target import TargetRef

STEPS = 3
TARGET = str(Path(__file__).parent / "mlp.py")


@dataclass(frozen=True, slots=True)
class Step:
    """What one process and ranks are compared by."""

    output: Tensor
    gradients: list[Tensor]
    weights: list[Tensor]

    def copied(self) -> Step:
        """Returns a copy that the next step does not change."""
        gradients = [t.clone() for t in self.gradients]
        return Step(self.output, gradients, [t.clone() for t in self.weights])


def main() -> None:
    """Prints one row per world size and way to run."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--world-sizes", default="2,8")
    parser.add_argument("--repetitions", type=int, default=20)
    parser.add_argument("--no-spawn", action="store_true")
    options = parser.parse_args()
    world_sizes = [int(size) for size in options.world_sizes.split(",")]
    torch.set_num_threads(1)

    print(f"{'way':<14}  {'median ms':>9}  {'quartiles ms':>16}  {'over plain':>10}")
    plain_ms = measure(train_plain, options.repetitions)
    print_row("plain", plain_ms, plain_ms)
    what = Preload(
        modules=PRELOAD_MODULES,
        call="ddpcheck.run.jobs:load_in_server",
        arguments={"path": TARGET, "names": []},
    )
    with Pool(what) as pool:
        pool.wait_for_imports()
        session = Session(pool, TargetRef(path=TARGET))
        for world_size in world_sizes:
            case = warm_case(session, world_size)
            case()  # forks the ranks
            bare = bare_case(pool, world_size)
            bare()
            print_row(
                f"bare W={world_size}", measure(bare, options.repetitions), plain_ms
            )
            print_row(
                f"warm W={world_size}", measure(case, options.repetitions), plain_ms
            )
    if not options.no_spawn:
        for world_size in world_sizes:
            taken = measure(lambda size=world_size: train_spawned(size), 3)  # type: ignore[misc]
            print_row(f"spawn W={world_size}", taken, plain_ms)


def warm_case(session: Session, world_size: int) -> Callable[[], None]:
    """Returns a function that runs one ddp case on the session's warm ranks."""
    spec = RunSpec(mode="ddp", world_size=world_size, dtype="float64", steps=STEPS)

    def case() -> None:
        outcome = session.run([spec])[0]
        assert all(result is not None for result in outcome.results())

    return case


def bare_case(pool: Pool, world_size: int) -> Callable[[], None]:
    """Returns a function that trains on the pool's ranks and compares nothing."""
    job = Job(function="warm:train_on_rank")

    def case() -> None:
        assert all(outcome.kind == "done" for outcome in pool.run(job, world_size))

    return case


def train_on_rank(context: Context) -> None:
    """Trains in a rank of the pool, which has its process group."""
    model = DistributedDataParallel(mlp.model().double())
    for _ in train(model, context.seat.rank, context.seat.world_size):
        pass


def train_plain() -> list[Step]:
    """Returns the steps of one process on the global batch."""
    return [step.copied() for step in train(mlp.model().double(), rank=0, world_size=1)]


def train_spawned(world_size: int) -> None:
    """Trains in new processes, as scripts do."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = (world_size, f"{folder}/store", train_plain())
        mp.spawn(train_rank, arguments, nprocs=world_size)


def train_rank(rank: int, world_size: int, store: str, reference: list[Step]) -> None:
    """Trains one rank and compares it with one process."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=world_size
    )
    train_and_compare(rank, world_size, reference)
    dist.destroy_process_group()
    # torch 2.13 aborts now and then where the interpreter ends right after that.
    os._exit(0)


def train_and_compare(rank: int, world_size: int, reference: list[Step]) -> None:
    """Trains one rank; outputs, gradients and weights must equal the single process."""
    model = DistributedDataParallel(mlp.model().double())
    for step, expected in zip(train(model, rank, world_size), reference, strict=True):
        rows = expected.output.chunk(world_size)[rank]
        for found, wanted in (
            (step.output, rows),
            (step.gradients, expected.gradients),
            (step.weights, expected.weights),
        ):
            torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-12)


def train(model: nn.Module, rank: int, world_size: int) -> Iterator[Step]:
    """Yields each of three steps on this rank's shards, after the optimizer's."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number in range(STEPS):
        x, y = (part.chunk(world_size)[rank].double() for part in mlp.batch(number))
        optimizer.zero_grad()
        output = model(x)
        mlp.loss(output, y).backward()
        optimizer.step()
        parameters = list(model.parameters())
        gradients = [p.grad for p in parameters if p.grad is not None]
        yield Step(output.detach(), gradients, [p.detach() for p in parameters])


def measure(work: Callable[[], object], repetitions: int) -> list[float]:
    """Returns the milliseconds of each repetition."""
    taken = []
    for _ in range(repetitions):
        started = time.perf_counter()
        work()
        taken.append(1000 * (time.perf_counter() - started))
    return taken


def print_row(label: str, taken_ms: list[float], plain_ms: list[float]) -> None:
    """Prints one line of the table."""
    low, median, high = statistics.quantiles(taken_ms, n=4)
    ratio = median / statistics.median(plain_ms)
    spread = f"{low:.1f} .. {high:.1f}"
    print(f"{label:<14}  {median:9.1f}  {spread:>16}  {ratio:10.1f}", flush=True)


if __name__ == "__main__":
    main()
