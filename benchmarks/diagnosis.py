"""What a diagnosis costs: a target with three causes against a clean run of it.

    python benchmarks/diagnosis.py [--repetitions 3]

`clean` is the whole command on three_causes.py with --no-fix and all three findings
out of the way: the same model and batch in three_causes_fixed.py, verdict equivalent.
`three causes` is the whole command on three_causes.py: found, fixed one after the
other, each proven by leaving its fix out again, and reported. Interleaved pairs, wall
time; the ratio's median is what counts.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

FOLDER = Path(__file__).parent
CAUSES = ["norm/local-batch-stats", "loss/local-normalizer", "ddp/forward-bypassed"]


def main() -> None:
    """Prints one row per pair, then the median ratio."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--repetitions", type=int, default=3)
    ratios = []
    print(f"{'clean s':>8}  {'three causes s':>14}  {'ratio':>6}")
    for _ in range(parser.parse_args().repetitions):
        clean_s = seconds("three_causes_fixed.py", [])
        found_s = seconds("three_causes.py", CAUSES)
        ratios.append(found_s / clean_s)
        print(f"{clean_s:8.2f}  {found_s:14.2f}  {ratios[-1]:6.2f}", flush=True)
    print(f"median ratio {statistics.median(ratios):.2f}")


def seconds(name: str, causes: list[str]) -> float:
    """Returns the wall time of a check, which must find these causes, all proven."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "report.json"
        options = ["-q", "--json", str(path), "--report-dir", folder, "--modes", "ddp"]
        command = [sys.executable, "-m", "ddpcheck", str(FOLDER / name), *options]
        started = time.perf_counter()
        subprocess.run(command, stdout=subprocess.DEVNULL, check=False)
        taken = time.perf_counter() - started
        findings = json.loads(path.read_text(encoding="utf-8"))["findings"]
    found = [f["slug"] for f in findings if f["fix"]["verified"]]
    assert found == causes, findings
    return taken


if __name__ == "__main__":
    main()
