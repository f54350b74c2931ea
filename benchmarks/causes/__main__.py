"""How many causes are found, on a corpus of broken training code with fixed twins.

    python benchmarks/causes [NAME ...]

The corpus: `NAME.py` here, modelled on reports of real projects, and `NAME_fixed.py`,
which, added to it, defines anew what mends it. Its first line has the causes, in the
order of the links: "# expect: SLUG, SLUG or SLUG", with "or" where one fault has two
names. World sizes 2 and 4. And the examples of all rules' pages, at 2. All run
on one engine, with fixed seeds. Printed: one line per target that comes out wrong,
then the totals.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ddpcheck.checking import sharded
from ddpcheck.checking.checking import check
from ddpcheck.checking.opening import PRELOAD_MODULES
from ddpcheck.diagnose.script_data import resumed
from ddpcheck.diagnose.script_data.judge import SLUGS as OF_DATA
from ddpcheck.errors.problem import UsageError
from ddpcheck.ranks.pool import Pool, Preload
from ddpcheck.report.data import Finding
from ddpcheck.report.pages import pages
from ddpcheck.run.session.session import CannotCheckError
from ddpcheck.target.options import Options
from ddpcheck.target.target import TargetRef

FOLDER = Path(__file__).parent
# Their examples are scripts, which `ddpcheck run` checks.
OF_SCRIPTS = {*OF_DATA, *resumed.SLUGS, *sharded.SLUGS}
# Findings that no run can prove, as their pages say, or not always.
UNPROVABLE = {
    "data/uneven-batches",
    "ddp/step-before-reduce",
    "graph/skipped-backward",
    "state/optimizer-state",
    "sync/collective-mismatch",
    "sync/control-desync",
    "sync/rank-died",
    "sync/rank-hung",
    "sync/rank-raised",
    "sync/scaler-desync",
}
# What DataParallel raises is not checked: the reason names the cause, no finding does
# (tests/diagnose/test_rules.py).
RAISES = {"dp/scatter-semantics", "dp/variable-length-gather"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A broken target, its fixed twin, and the slugs that name each cause."""

    name: str
    broken: Path
    fixed: Path
    causes: list[list[str]]
    world_sizes: tuple[int, ...]
    modes: tuple[str, ...] | None = None


@dataclass(slots=True)
class Totals:
    """Counts over all cases."""

    cases: int = 0
    detected: int = 0
    first_cause: int = 0
    all_causes: int = 0
    provable: int = 0
    proven: int = 0
    confirmed: int = 0
    false_alarms: int = 0
    seconds: float = 0.0


def corpus(folder: Path) -> Iterator[Case]:
    """Yields the targets of this folder, then the pages'; twins go to `folder`."""
    for mends in sorted(FOLDER.glob("*_fixed.py")):
        name = mends.stem.removesuffix("_fixed")
        broken, fixed = FOLDER / f"{name}.py", folder / mends.name
        parts = [part.read_text(encoding="utf-8") for part in (broken, mends)]
        fixed.write_text("\n".join(parts), encoding="utf-8")
        yield Case(
            name=name,
            broken=broken,
            fixed=fixed,
            causes=causes_of(broken),
            world_sizes=(2, 4),
        )
    for slug in sorted(set(pages.rule_slugs()) - RAISES - OF_SCRIPTS):
        name = slug.replace("/", "_").replace("-", "_")
        broken, fixed = folder / f"{name}.py", folder / f"{name}_fixed.py"
        for path, source in zip((broken, fixed), pages.targets(slug), strict=True):
            path.write_text(source, encoding="utf-8")
        yield Case(
            name=f"page of {slug}",
            broken=broken,
            fixed=fixed,
            causes=[[slug]],
            world_sizes=(2,),
            modes=("ps",) if slug.startswith("ps/") else None,
        )


def causes_of(path: Path) -> list[list[str]]:
    """Returns the slugs that name each cause of a program.

    Raises:
        ValueError: its first line does not list them.
    """
    line, *_ = path.read_text(encoding="utf-8").splitlines()
    expected = line.removeprefix("# expect: ")
    if expected == line:
        raise ValueError(f'{path}: the first line is not "# expect: SLUG, ..."')
    return [cause.split(" or ") for cause in expected.split(", ")]


def main(wanted: list[str]) -> int:
    """Runs the corpus; returns 1 where something came out wrong."""
    totals = Totals()
    started = time.perf_counter()
    preload = Preload(modules=PRELOAD_MODULES)
    with tempfile.TemporaryDirectory() as folder, Pool(preload, timeout_s=15) as pool:
        pool.start()
        pool.wait_for_imports()
        for case in corpus(Path(folder)):
            if not wanted or any(part in case.name for part in wanted):
                judge(case, pool, totals)
    totals.seconds = time.perf_counter() - started
    print(
        f"{totals.cases} broken targets: {totals.detected} detected, "
        f"{totals.first_cause} with the right first cause, {totals.all_causes} with "
        f"all causes; equal by an intervention {totals.proven} of {totals.provable}, "
        f"{totals.confirmed} by one that does as the fix says; "
        f"{totals.false_alarms} false alarms on {totals.cases} fixed twins; "
        f"{totals.seconds:.0f} s"
    )
    is_right = totals.all_causes == totals.cases and not totals.false_alarms
    return 0 if is_right else 1


def judge(case: Case, pool: Pool, totals: Totals) -> None:
    """Runs both targets of a case and counts what came out."""
    totals.cases += 1
    verdict, findings = outcome(case.broken, case, pool)
    slugs = [finding.slug for finding in findings]
    totals.detected += verdict == "divergent"
    first = bool(slugs) and slugs[0] in case.causes[0]
    every = len(slugs) == len(case.causes) and all(
        slug in names for slug, names in zip(slugs, case.causes, strict=True)
    )
    totals.first_cause += first
    totals.all_causes += every
    proven = [f for f in findings if f.fix and f.fix.verified]
    provable = [f for f in findings if f.slug not in UNPROVABLE or f in proven]
    totals.provable += len(provable)
    totals.proven += len(proven)
    totals.confirmed += sum(f.fix.proof == "intervention" for f in proven if f.fix)
    if not every or len(proven) < len(provable):
        print(f"{case.name}: {verdict}, {slugs or 'no finding'}, not {case.causes}")
    verdict, findings = outcome(case.fixed, case, pool)
    if verdict != "equivalent" or findings:
        totals.false_alarms += 1
        print(f"{case.name}, fixed: {verdict}, {[f.slug for f in findings]}")
    sys.stdout.flush()


def outcome(path: Path, case: Case, pool: Pool) -> tuple[str, tuple[Finding, ...]]:
    """Returns the verdict and the findings of one target of a case."""
    options = Options(world_sizes=case.world_sizes, modes=case.modes)
    try:
        report = check(pool, TargetRef(path=str(path)), options)
    except (UsageError, CannotCheckError) as error:
        return str(error), ()
    return report.verdict, report.findings


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
