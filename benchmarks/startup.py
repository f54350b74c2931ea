"""Cold start: a whole check against importing torch, in interleaved pairs.

    python benchmarks/startup.py [--repetitions 5]

A check is `ddpcheck benchmarks/mlp.py`: the reference, DataParallel and
DistributedDataParallel at world sizes 2, 4 and 8, three steps each, verdict
equivalent. It is compared with `python -c "import torch, torch._dynamo"`, which is
what any tool that builds a DistributedDataParallel has to import. Wall time; the
quantity of interest is the ratio, whose median over the pairs is printed.
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
IMPORT = [sys.executable, "-c", "import torch, torch._dynamo"]
CHECK = [sys.executable, "-m", "ddpcheck", str(TARGET), "-q"]


def main() -> None:
    """Prints one row per pair, then the medians."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--repetitions", type=int, default=5)
    repetitions = parser.parse_args().repetitions
    with tempfile.TemporaryDirectory() as folder:
        seconds(IMPORT, folder)  # fills the page cache; not counted
        seconds(CHECK, folder)
        print(f"{'pair':>6}  {'import s':>8}  {'check s':>8}  {'ratio':>6}")
        pairs = []
        for number in range(1, repetitions + 1):
            pairs.append(pair(folder, first=CHECK if number % 2 else IMPORT))
            print_row(str(number), *pairs[-1])
    imports, checks = zip(*pairs, strict=True)
    ratio = statistics.median(c / i for i, c in pairs)
    print_row("median", statistics.median(imports), statistics.median(checks), ratio)


def pair(folder: str, *, first: list[str]) -> tuple[float, float]:
    """Returns the seconds of (the import, the check), run one after the other."""
    order = [IMPORT, CHECK] if first is IMPORT else [CHECK, IMPORT]
    taken = {id(command): seconds(command, folder) for command in order}
    return taken[id(IMPORT)], taken[id(CHECK)]


def seconds(command: list[str], folder: str) -> float:
    """Returns the wall time of a command that must succeed."""
    started = time.perf_counter()
    subprocess.run(command, check=True, cwd=folder, stdout=subprocess.DEVNULL)
    return time.perf_counter() - started


def print_row(
    label: str, import_s: float, check_s: float, ratio: float | None = None
) -> None:
    """Prints one line of the table."""
    ratio = check_s / import_s if ratio is None else ratio
    print(f"{label:>6}  {import_s:8.2f}  {check_s:8.2f}  {ratio:6.2f}", flush=True)


if __name__ == "__main__":
    main()
