"""Cold start: a whole check against importing torch, in interleaved rounds.

    python benchmarks/startup.py [--repetitions 5]

A check is `ddpcheck benchmarks/mlp.py`: the reference, DataParallel and
DistributedDataParallel at world sizes 2, 4 and 8, three steps each, verdict
equivalent. It is compared with `python -c "import torch, torch._dynamo"`, which is
what building a DistributedDataParallel imports, and with `import torch` alone. Wall
time; the quantities of interest are the two ratios, whose medians are printed.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TARGET = Path(__file__).parent / "mlp.py"
COMMANDS = {
    "check": [sys.executable, "-m", "ddpcheck", str(TARGET), "-q"],
    "both": [sys.executable, "-c", "import torch, torch._dynamo"],
    "torch": [sys.executable, "-c", "import torch"],
}


def main() -> None:
    """Prints one row per round, then the medians."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--repetitions", type=int, default=5)
    repetitions = parser.parse_args().repetitions
    with tempfile.TemporaryDirectory() as folder:
        round_of(folder, 0)  # fills the page cache; not counted
        titles = ("round", "check s", "both s", "torch s", "/ both", "/ torch")
        print("  ".join(f"{title:>7}" for title in titles))
        rows = []
        for number in range(1, repetitions + 1):
            rows.append(with_ratios(round_of(folder, number)))
            print_row(str(number), rows[-1])
    print_row(
        "median", [statistics.median(column) for column in zip(*rows, strict=True)]
    )


def round_of(folder: str, number: int) -> list[float]:
    """Returns the seconds of each command, run one after the other."""
    names = list(COMMANDS)
    first = number % len(names)
    order = names[first:] + names[:first]
    taken = {name: seconds(COMMANDS[name], folder) for name in order}
    return [taken[name] for name in names]


def seconds(command: list[str], folder: str) -> float:
    """Returns the wall time of a command that must succeed."""
    started = time.perf_counter()
    subprocess.run(command, check=True, cwd=folder, stdout=subprocess.DEVNULL)
    return time.perf_counter() - started


def with_ratios(taken: list[float]) -> list[float]:
    """Returns the times, and the first as a multiple of each of the others."""
    check, both, torch = taken
    return [*taken, check / both, check / torch]


def print_row(label: str, values: list[float]) -> None:
    """Prints one line of the table."""
    cells = "  ".join(f"{value:7.2f}" for value in values)
    print(f"{label:>7}  {cells}", flush=True)


if __name__ == "__main__":
    main()
