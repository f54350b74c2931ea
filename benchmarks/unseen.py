"""How many causes are found in bugs that nobody tuned the rules on.

    python benchmarks/unseen.py [NAME ...]

The corpus: unseen/NAME/broken.py and fixed.py, written from public reports by someone
who had seen neither the rules nor the code of ddpcheck, and judged with plain torch: at
world size 2, 4 or 8 the broken one differs from the single-process run, and the fixed
one never does. truth.json has the report, what is wrong and where. Its `accepted` are
the slugs of the catalogue of causes that name it, chosen by a second person before the
first run: "unknown" if the catalogue has none. `link_accepted` are the links at which
an unknown cause may be reported.

The corpus is frozen: no rule is changed for a program of it. Printed: one line per
program that comes out wrong, then the totals. The exit code is 1 if a broken program
passes or a fixed one does not.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from ddpcheck.checking.checking import check
from ddpcheck.checking.opening import PRELOAD_MODULES
from ddpcheck.errors.problem import UsageError
from ddpcheck.ranks.pool import Pool, Preload
from ddpcheck.report.data import Finding
from ddpcheck.run.session.session import CannotCheckError
from ddpcheck.target.options import Options
from ddpcheck.target.target import TargetRef

FOLDER = Path(__file__).with_suffix("")
OPTIONS = Options(world_sizes=(2, 4), modes=("ddp",))
UNKNOWN = "unknown"


def main(wanted: list[str]) -> int:
    """Runs the corpus; returns 1 where a verdict is wrong."""
    counts: Counter[str] = Counter()
    started = time.perf_counter()
    with Pool(Preload(modules=PRELOAD_MODULES), timeout_s=20) as pool:
        pool.start()
        pool.wait_for_imports()
        for folder in sorted(p.parent for p in FOLDER.glob("*/truth.json")):
            if not wanted or any(part in folder.name for part in wanted):
                _judge(folder, pool, counts)
    pairs = counts["pairs"]
    print(
        f"{pairs} pairs: {counts['detected']} broken ones detected, {counts['named']} "
        f"with a right first cause, {counts['placed']} more with the cause unknown and "
        f"its link right, {counts['wrong']} with a wrong cause; "
        f"{counts['alarms']} false alarms on the fixed ones; "
        f"{time.perf_counter() - started:.0f} s"
    )
    return 0 if counts["detected"] == pairs and not counts["alarms"] else 1


def _judge(folder: Path, pool: Pool, counts: Counter[str]) -> None:
    truth = json.loads((folder / "truth.json").read_text(encoding="utf-8"))
    counts["pairs"] += 1
    verdict, findings = _outcome(folder / "broken.py", pool)
    counts["detected"] += verdict == "divergent"
    kind = _kind(findings, truth) if verdict == "divergent" else "missed"
    counts[kind] += 1
    if kind != "named":
        told = ", ".join(f"{f.slug} ({f.link})" for f in findings) or verdict
        expected = " or ".join(truth["accepted"])
        print(f"{folder.name}: {kind}: {told}; accepted: {expected}", flush=True)
    verdict, findings = _outcome(folder / "fixed.py", pool)
    if verdict != "equivalent":
        counts["alarms"] += 1
        told = ", ".join(f.slug for f in findings)
        print(f"{folder.name}/fixed.py: {verdict} {told}", flush=True)


def _kind(findings: list[Finding], truth: dict[str, Any]) -> str:
    """Returns "named", "placed" for an unknown at a right link, or "wrong"."""
    first = findings[0]
    if first.slug != UNKNOWN:
        return "named" if first.slug in truth["accepted"] else "wrong"
    is_placed = first.link in truth["link_accepted"]
    if is_placed and UNKNOWN in truth["accepted"]:
        return "named"
    return "placed" if is_placed else "wrong"


def _outcome(path: Path, pool: Pool) -> tuple[str, list[Finding]]:
    """Returns the verdict and the findings."""
    try:
        report = check(pool, TargetRef(path=str(path)), OPTIONS)
    except (UsageError, CannotCheckError) as error:
        return f"not checked: {error}".splitlines()[0], []
    return report.verdict, list(report.findings)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
