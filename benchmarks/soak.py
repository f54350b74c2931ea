"""A thousand mixed cases in one session: what grows, and by how much.

    python benchmarks/soak.py [--cases 1000] [--every 100]

Targets that pass, diverge, raise on one rank, exit and are refused, in the modes dp,
ddp, averaged and sim, at world sizes 1 to 8, in a random order of seed 0. After every
hundred cases: open files, threads and resident memory of the tool, the same of the fork
server, the processes of the session and their resident memory, and the files in its
folder. `growth` compares the last row with the first, when every kind of case has been
seen: ranks are replaced after a failure, so processes vary by the crews that are open.
"""

from __future__ import annotations

import argparse
import os
import random
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import torch
from mlp import model
from torch import Tensor, nn

from ddpcheck.checking.opening import PRELOAD_MODULES
from ddpcheck.errors.problem import UsageError
from ddpcheck.ranks.pool import Pool, Preload
from ddpcheck.run.session import assemble
from ddpcheck.run.session.session import Session
from ddpcheck.run.spec import RunSpec
from ddpcheck.target.target import Target, TargetRef

MODES = ("dp", "ddp", "averaged", "sim")
KINDS = ("mean", "sum", "conv", "norm", "raises", "exits", "collective", "unseeded")
# Few of those that cost a crew its life: forking 8 ranks is most of such a case.
WEIGHTS = (6, 6, 3, 3, 1, 1, 2, 1)


def target(kind: str) -> Target:
    """Returns a target of this kind; called by name in ranks."""
    return Target(
        name=kind,
        model=_MODELS.get(kind, model),
        batch=_batch,
        loss=_LOSSES.get(kind, nn.functional.mse_loss),
    )


def _batch(step: int) -> tuple[Tensor, Tensor]:
    noise = torch.Generator().manual_seed(step)
    x = torch.randn(16, 32, generator=noise)
    return x, x[:, :1] ** 2


def _sum(output: Tensor, target: Tensor) -> Tensor:
    return nn.functional.mse_loss(output, target, reduction="sum") / 1000


def _is_rank(rank: int) -> bool:
    return torch.distributed.is_initialized() and torch.distributed.get_rank() == rank


def _raises(output: Tensor, target: Tensor) -> Tensor:
    if _is_rank(0):
        message = "this rank raises"
        raise ValueError(message)
    return nn.functional.mse_loss(output, target)


def _exits(output: Tensor, target: Tensor) -> Tensor:
    if _is_rank(0):
        os._exit(7)
    return nn.functional.mse_loss(output, target)


def _collective(output: Tensor, target: Tensor) -> Tensor:
    value = nn.functional.mse_loss(output, target)
    if torch.distributed.is_initialized():
        torch.distributed.all_reduce(value.detach().clone())
    return value


def _with_norm() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(32, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))


def _conv() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Unflatten(1, (2, 16)), nn.Conv1d(2, 4, 3), nn.Flatten(), nn.Linear(56, 1)
    )


def _unseeded() -> nn.Module:
    return nn.Linear(32, 1)


_MODELS: dict[str, Any] = {"norm": _with_norm, "conv": _conv, "unseeded": _unseeded}
_LOSSES: dict[str, Any] = {
    "sum": _sum,
    "raises": _raises,
    "exits": _exits,
    "collective": _collective,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """What the session holds at one moment."""

    cases: int
    files: int
    threads: int
    tool_mib: float
    server_files: int
    server_mib: float
    processes: int
    ranks_mib: float
    folder: int

    def row(self) -> str:
        """Returns the numbers under the heading."""
        return (
            f"{self.cases:>6}  {self.files:>5}  {self.threads:>7}  "
            f"{self.tool_mib:8.1f}  {self.server_files:>12}  {self.server_mib:10.1f}  "
            f"{self.processes:>9}  {self.ranks_mib:9.1f}  {self.folder:>12}"
        )


HEADING = (
    " cases  files  threads  tool MiB  server files  server MiB  processes  rank MiB  "
    "folder files"
)


def main() -> None:
    """Prints a row per hundred cases, the outcomes and the growth."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--every", type=int, default=100)
    options = parser.parse_args()
    chosen = random.Random(0)  # noqa: S311 (an order)
    seen: Counter[str] = Counter()
    samples: list[Sample] = []
    what = Preload(modules=PRELOAD_MODULES)
    started = time.perf_counter()
    print(HEADING)
    with Pool(what, timeout_s=20) as pool:
        pool.wait_for_imports()
        sessions = {
            kind: Session(
                pool,
                TargetRef(factory="soak:target", arguments=(("kind", kind),)),
            )
            for kind in KINDS
        }
        for number in range(1, options.cases + 1):
            kind = chosen.choices(KINDS, WEIGHTS)[0]
            seen[run(sessions[kind], chosen)] += 1
            if number % options.every == 0:
                samples.append(sample(pool, number))
                print(samples[-1].row(), flush=True)
    print(f"outcomes: {', '.join(f'{n} {kind}' for kind, n in sorted(seen.items()))}")
    print(f"{time.perf_counter() - started:.0f} s; {growth(samples)}")


def run(session: Session, chosen: random.Random) -> str:
    """Makes one case; returns how it came out."""
    mode, world_size = chosen.choice(MODES), chosen.randint(1, 8)
    try:
        outcome = session.run([RunSpec(mode=mode, world_size=world_size)])[0]
    except UsageError as error:
        return error.problem.slug
    made = assemble.to_run(outcome, outcome.spec.rtol)
    return "fault" if made.faults else made.verdict


def sample(pool: Pool, cases: int) -> Sample:
    """Returns what the session holds now."""
    tool = psutil.Process()
    children = tool.children()
    # The fork server is the child that has imported torch.
    server = max(children, key=lambda child: child.memory_info().rss)
    ranks = server.children(recursive=True)
    return Sample(
        cases=cases,
        files=tool.num_fds(),
        threads=tool.num_threads(),
        tool_mib=tool.memory_info().rss / 2**20,
        server_files=server.num_fds(),
        server_mib=server.memory_info().rss / 2**20,
        processes=len(tool.children(recursive=True)),
        # What a rank does not share with the fork server.
        ranks_mib=max((r.memory_full_info().uss for r in ranks), default=0) / 2**20,
        folder=len(list(Path(pool.folder).iterdir())),
    )


def growth(samples: list[Sample]) -> str:
    """Returns the difference between the first row and the last."""
    first, last = samples[0], samples[-1]
    names = ("files", "threads", "tool_mib", "server_files", "server_mib", "processes")
    parts = [
        f"{name} {getattr(last, name) - getattr(first, name):+.4g}"
        for name in (*names, "ranks_mib", "folder")
    ]
    cases = last.cases - first.cases
    return f"growth over the last {cases} cases: {', '.join(parts)}"


if __name__ == "__main__":
    main()
