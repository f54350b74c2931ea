"""A check of GPT-2 with 124M parameters: its time, its memory, what is pickled.

    python benchmarks/large_model.py [--dtypes float32,float64] [--world-sizes 2,4]
                                     [--default-buckets]

Each row is one check in mode ddp at one world size, three steps and one of samples in
another order, on ranks that have imported torch and the target. `plain s` are the
forward and backward passes that it has to do, timed on the same ranks by themselves:
four steps of one process on the global batch, then four steps of W processes on their
shards, no DDP and no optimizer; `of plain` the check's time over that, at most 1.5.
`peak` is the largest sum of the proportional set size (PSS) of all processes of the
tool, this one too, plus what lies unmapped in shared memory, over the bytes of the
model and its gradients; at most W + 2. `bare` is that of the ranks' training under DDP
and nothing else: no check of theirs can do with less. `message` is the largest that any
process pickled for another, at most 1 MB. With --default-buckets DDP is the default
one, which holds a third copy of the model: a bucket for each gradient. GPT2_SEQUENCE
sets the tokens per sample, 64 by default: most of what a check adds to the passes does
not grow with them.
"""

from __future__ import annotations

import argparse
import contextlib
import pickle
import threading
import time
from collections.abc import Iterator
from multiprocessing import connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from ddpcheck.checking import checking, opening
from ddpcheck.ranks import messages
from ddpcheck.ranks.messages import Job
from ddpcheck.ranks.pool import SOLO, Pool
from ddpcheck.target.options import Options
from ddpcheck.target.target import TargetRef

if TYPE_CHECKING:
    from typing_extensions import Self

TARGET = Path(__file__).parent / "gpt2.py"
_EVERY_S = 0.1  # between two looks at the memory; a look takes about 20 ms


def main() -> None:
    """Prints a row per dtype and world size."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--dtypes", default="float32,float64")
    parser.add_argument("--world-sizes", default="2,4")
    parser.add_argument("--default-buckets", action="store_true")
    options = parser.parse_args()
    print(
        f"{'dtype':<8} {'W':>2}  {'check s':>8}  {'plain s':>8}  {'of plain':>8}  "
        f"{'peak GiB':>8}  {'peak':>5}  {'bare':>5}  {'bound':>5}  {'message':>9}  "
        "verdict"
    )
    names = (("wrap", "default_wrap"),) if options.default_buckets else ()
    for dtype in options.dtypes.split(","):
        for world_size in map(int, options.world_sizes.split(",")):
            measure(TargetRef(path=str(TARGET), names=names), dtype, world_size)


def measure(ref: TargetRef, dtype: str, world_size: int) -> None:
    """Prints one row."""
    asked = Options(
        world_sizes=(world_size,), modes=("ddp",), dtype=dtype, timeout_s=600
    )
    with opening.pool_for(ref, asked) as pool:
        pool.start()
        opening.wait_for_imports(pool, ref)
        pool.open(SOLO)
        pool.open(world_size)
        started = time.perf_counter()
        report = checking.check(pool, ref, asked)
        check_s = time.perf_counter() - started
        # Once more: reading the memory takes a core's time, and a lock.
        with messages_measured() as sizes, Memory(pool) as memory:
            checking.check(pool, ref, asked)
        index = [p.stat().st_size for p in memory.indices if p.exists()]
        plain_s = plain(pool, dtype, world_size)
        wrap = dict(ref.names).get("wrap", "wrap")
        job = Job(function="passes:train", arguments={"dtype": dtype, "wrap": wrap})
        with Memory(pool) as bare:
            pool.run(job, world_size)
    width = 8 if dtype == "float64" else 4
    unit = 2 * width * report.target.num_parameters
    print(
        f"{dtype:<8} {world_size:>2}  {check_s:8.1f}  {plain_s:8.1f}  "
        f"{check_s / plain_s:8.2f}  {memory.peak / 2**30:8.2f}  "
        f"{memory.peak / unit:5.2f}  {bare.peak / unit:5.2f}  {world_size + 2:5}  "
        f"{max(sizes + index):>9,}  "
        f"{report.verdict}",
        flush=True,
    )


def plain(pool: Pool, dtype: str, world_size: int) -> float:
    """Returns the seconds of all forward and backward passes by themselves."""
    job = Job(function="passes:passes", arguments={"dtype": dtype})
    return sum(
        max(float(outcome.value) for outcome in pool.run(job, size))
        for size in (SOLO, world_size)
    )


class Memory:
    """Looks at all processes of the tool from a thread, as long as it is entered."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look)
        self.peak = 0
        self.indices: set[Path] = set()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._ended.wait(_EVERY_S):
            processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
            total = mapped = 0
            for process in processes:
                with contextlib.suppress(OSError):
                    found = rollup(process.pid)
                    total += found["Pss"]
                    mapped += found.get("Pss_Shmem", 0)
            held = sum(p.stat().st_blocks * 512 for p in self._files())
            self.peak = max(self.peak, total + max(0, held - mapped))

    def _files(self) -> Iterator[Path]:
        for path in self._pool.folder.iterdir():
            if path.suffix == ".idx":
                self.indices.add(path)
            if path.is_file():
                yield path


def rollup(pid: int) -> dict[str, int]:
    """Returns the bytes of /proc/PID/smaps_rollup by name."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    return {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines}


@contextlib.contextmanager
def messages_measured() -> Iterator[list[int]]:
    """Notes the size of all that the tool sends to ranks, and they to it."""
    sizes = [0]
    send, receive = connection.Connection.send_bytes, connection.Connection.recv
    read = messages.read_journal

    def sending(self: Any, value: Any) -> None:
        data = pickle.dumps(value)
        sizes.append(len(data))
        send(self, data)

    def receiving(self: Any) -> Any:
        value = receive(self)
        sizes.append(len(pickle.dumps(value)))
        return value

    def reading(path: Path) -> list[Any]:
        values = read(path)
        sizes.extend(len(pickle.dumps(value)) for value in values)
        return values

    original = connection.Connection.send
    connection.Connection.send = sending  # type: ignore[method-assign,assignment]
    connection.Connection.recv = receiving  # type: ignore[method-assign]
    messages.read_journal = reading
    try:
        yield sizes
    finally:
        connection.Connection.send = original  # type: ignore[method-assign]
        connection.Connection.recv = receive  # type: ignore[method-assign]
        messages.read_journal = read


if __name__ == "__main__":
    main()
