"""Cost of a case as the world size grows: real ranks to 64, simulated to 4,096.

    python benchmarks/scale.py [--repetitions 5] [--world-sizes 2,4,8,16,32,64]
                               [--simulate 16,256,1024,4096]

`ddp` is a whole case on warm ranks, three steps of `mlp.py` on its batch of 64, all
world sizes in one session. `start` is the first case of a world size, which forks its
ranks. `cpu` is processor time of all ranks and of the tool, which other work on the
machine does not lengthen; `bare` that of the same training without any checking: what
DDP and gloo take. `growth` is a cost over that of the row before, divided by the growth
of the world size, up to 1 is at most linear: of `cpu`, of `bare` and of what is over
bare, the tool's own. `sim` plays the ranks on `wide_mlp.py` in one
process; `per pass` is the time per rank and step, `peak MiB` the largest resident
memory of that process during the case, `over import` what of it was not there before
its first case. Median over the repetitions.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path

from ddpcheck.checking.opening import PRELOAD_MODULES
from ddpcheck.ranks.messages import Job
from ddpcheck.ranks.pool import SOLO, Pool, Preload
from ddpcheck.run.session.session import Session
from ddpcheck.run.spec import RunSpec
from ddpcheck.target.target import TargetRef

STEPS = 3
HERE = Path(__file__).parent


def main() -> None:
    """Prints one row per world size, real and simulated."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--world-sizes", default="2,4,8,16,32,64")
    parser.add_argument("--simulate", default="16,256,1024,4096")
    options = parser.parse_args()
    real(_sizes(options.world_sizes), options.repetitions)
    print()
    simulated(_sizes(options.simulate), min(options.repetitions, 3))


def _sizes(text: str) -> list[int]:
    return [int(size) for size in text.split(",")]


def pool_of(target: Path) -> Pool:
    """Returns a pool whose ranks have imported the target."""
    what = Preload(
        modules=PRELOAD_MODULES,
        call="ddpcheck.run.jobs:load_in_server",
        arguments={"path": str(target), "names": []},
    )
    return Pool(what, timeout_s=600)


def real(world_sizes: list[int], repetitions: int) -> None:
    """Prints a row per world size of real ranks."""
    print(
        f"{'ddp W':>9}  {'start s':>8}  {'case s':>8}  {'per rank ms':>11}  "
        f"{'cpu s':>7}  {'bare s':>7}  growth of cpu, bare, own"
    )
    target = HERE / "mlp.py"
    with pool_of(target) as pool:
        pool.wait_for_imports()
        session = Session(pool, TargetRef(path=str(target)))
        session.reference(RunSpec(mode="single", steps=STEPS))
        rows: list[list[tuple[int, float]]] = [[], [], []]
        for world_size in world_sizes:
            spec = RunSpec(mode="ddp", world_size=world_size, steps=STEPS)
            start_s = seconds(session, spec)
            job = Job(function="warm:train_on_rank")
            pool.run(job, world_size)
            pairs = [
                (
                    measured(pool, world_size, lambda: seconds(session, spec)),  # noqa: B023
                    measured(pool, world_size, lambda: pool.run(job, world_size)),  # noqa: B023
                )
                for _ in range(repetitions)
            ]
            case_s, cpu_s = (statistics.median(p[0][i] for p in pairs) for i in (0, 1))
            bare_s = statistics.median(p[1][1] for p in pairs)
            own_s = statistics.median(p[0][1] - p[1][1] for p in pairs)
            for row, value in zip(rows, (cpu_s, bare_s, own_s), strict=True):
                row.append((world_size, value))
            print(
                f"{world_size:>9}  {start_s:8.3f}  {case_s:8.3f}  "
                f"{1000 * case_s / world_size:11.2f}  {cpu_s:7.3f}  {bare_s:7.3f}  "
                f"{'  '.join(growth(row) for row in rows)}",
                flush=True,
            )


def measured(
    pool: Pool, world_size: int, work: Callable[[], object]
) -> tuple[float, float]:
    """Returns wall time, and processor time of the ranks and this process."""
    pids = [os.getpid(), *pool.open(world_size).pids()]
    before, started = cpu_s(pids), time.perf_counter()
    work()
    return time.perf_counter() - started, cpu_s(pids) - before


def cpu_s(pids: list[int]) -> float:
    """Returns the processor time of all threads of processes (man 5 proc)."""
    files = (f for pid in pids for f in Path(f"/proc/{pid}/task").glob("*/schedstat"))
    return sum(int(file.read_text().split()[0]) for file in files) / 1e9


def simulated(world_sizes: list[int], repetitions: int) -> None:
    """Prints a row per world size of ranks that one process simulates."""
    print(
        f"{'sim W':>9}  {'case s':>8}  {'per pass ms':>11}  {'growth':>6}  "
        f"{'peak MiB':>8}  {'over import':>11}"
    )
    target = HERE / "wide_mlp.py"
    with pool_of(target) as pool:
        pool.wait_for_imports()
        session = Session(pool, TargetRef(path=str(target)))
        (solo,) = pool.open(SOLO).pids()
        before = peak_mib(solo)
        session.reference(RunSpec(mode="single", steps=STEPS))
        rows = []
        for world_size in world_sizes:
            spec = RunSpec(mode="sim", world_size=world_size, steps=STEPS)
            reset_peak(solo)
            case_s = statistics.median(
                seconds(session, spec) for _ in range(repetitions)
            )
            rows.append((world_size, case_s))
            passes = STEPS * (world_size + 1)
            print(
                f"{world_size:>9}  {case_s:8.3f}  {1000 * case_s / passes:11.3f}  "
                f"{growth(rows):>6}  {peak_mib(solo):8.1f}  "
                f"{peak_mib(solo) - before:11.1f}",
                flush=True,
            )


def seconds(session: Session, spec: RunSpec) -> float:
    """Returns the wall time of a case, which must succeed on all ranks."""
    started = time.perf_counter()
    outcome = session.run([spec])[0]
    taken = time.perf_counter() - started
    for result in outcome.results():
        assert result is not None
        assert result.raised is None
    return taken


def growth(rows: list[tuple[int, float]]) -> str:
    """Returns the growth of the last row's time over that of its world size."""
    if len(rows) < 2:  # noqa: PLR2004
        return "-"
    (w, s), (wider, longer) = list(itertools.pairwise(rows))[-1]
    return f"{longer / s / (wider / w):.2f}"


def peak_mib(pid: int) -> float:
    """Returns the largest resident memory of a process since `reset_peak`."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    message = f"no VmHWM of process {pid}"
    raise OSError(message)


def reset_peak(pid: int) -> None:
    """Lets the peak begin again at what is resident now (man 5 proc)."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")


if __name__ == "__main__":
    main()
