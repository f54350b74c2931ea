"""ddpcheck --demo: a broken target and the fixed one, checked one after the other."""

from __future__ import annotations

import dataclasses
import difflib
import shutil
import sys
from pathlib import Path

from ddpcheck.checking import checking, opening, places
from ddpcheck.errors.problem import UsageError
from ddpcheck.ranks.pool import Pool, Preload, PreloadError
from ddpcheck.report import output, streams
from ddpcheck.report.data import EXIT_EQUIVALENT, EXIT_NOT_CHECKED, Report
from ddpcheck.report.output import Outputs
from ddpcheck.report.progress import Progress
from ddpcheck.run.modes.ddp import DDP
from ddpcheck.run.session.session import CannotCheckError, preload_problem
from ddpcheck.target.options import Options
from ddpcheck.target.target import TargetRef

_HERE = Path(__file__).parent
TARGETS = {"broken": _HERE / "demo_broken.py", "fixed": _HERE / "demo_fixed.py"}
_OPTIONS = Options(world_sizes=(2, 4), modes=(DDP.name,))

_INTRO = """\
A tagger learns from sentences of unequal length. Its loss is the sum over the tokens
divided by their number. Under DistributedDataParallel every rank divides by the
number of its own tokens, and DDP averages the gradients: tokens of short sentences
weigh more than in single-process training.

1. {broken}

"""
_BETWEEN = """
2. {fixed}: the counts are summed over the ranks

{difference}
"""
_END = """
The broken target diverges, the fixed one passes. Next, check your own model:
ddpcheck --init, ddpcheck --help
"""
_UNEXPECTED = """
This is not what the demo should show: the broken target must be divergent, the fixed
one equivalent. Please report it with the output above.
"""


def main(wanted: Outputs) -> int:
    """Checks both targets; returns 0 if both have the expected verdict.

    Raises:
        UsageError: the environment has no torch, or the folder would lie in a file.
        CannotCheckError: torch cannot be imported.
    """
    folder = Path(wanted.report_dir or "reports") / "demo"
    if wanted.report_dir:
        places.check_folder(folder, "ddpcheck --demo")
    paths = {name: _copy(path, folder / f"{name}.py") for name, path in TARGETS.items()}
    preload = Preload(modules=opening.PRELOAD_MODULES)
    with Pool(preload, timeout_s=_OPTIONS.limit_s) as pool:
        with output.importing_ahead(wanted), Progress(sys.stderr) as progress:
            progress("importing torch")
            _import(pool)
            broken = _check(pool, paths["broken"], progress)
        streams.write(_INTRO.format(broken=paths["broken"]))
        _show(broken, folder, wanted)
        streams.write(_BETWEEN.format(fixed=paths["fixed"], difference=_difference()))
        with Progress(sys.stderr) as progress:
            fixed = _check(pool, paths["fixed"], progress)
        _show(fixed, folder, wanted)
    as_expected = (broken.verdict, fixed.verdict) == ("divergent", "equivalent")
    streams.write(_END if as_expected else _UNEXPECTED)
    return EXIT_EQUIVALENT if as_expected else EXIT_NOT_CHECKED


def _copy(path: Path, to: Path) -> Path:
    """Copies the target to a place where the user can edit it, if possible."""
    try:
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, to)
    except OSError as error:
        streams.warn(f"cannot write {to}: {error.strerror}")
        return path
    return to


def _import(pool: Pool) -> None:
    try:
        pool.wait_for_imports()
    except PreloadError as error:
        problem = preload_problem(error, "the demo")
        if problem is not None:
            raise UsageError(problem) from error
        raise CannotCheckError(f"importing torch {error.kind}", error.detail) from error


def _check(pool: Pool, path: Path, progress: Progress) -> Report:
    ref = TargetRef(path=str(path.absolute()))
    report = checking.check(pool, ref, _OPTIONS, progress=progress)
    target = dataclasses.replace(report.target, path=str(path))
    command = f"ddpcheck {path} --world-sizes 2,4 --modes ddp"
    return dataclasses.replace(report, target=target, command=command)


def _show(report: Report, folder: Path, wanted: Outputs) -> None:
    place = output.folder_of(report.target.path, str(folder))
    path = output.write_report(report, place)
    streams.write(output.terminal(report, wanted, path))


def _difference() -> str:
    """Returns the changed lines of the loss."""
    broken, fixed = (
        path.read_text(encoding="utf-8").partition("def loss")[2].splitlines()
        for path in TARGETS.values()
    )
    lines = list(difflib.unified_diff(broken, fixed, lineterm="", n=0))[2:]
    return "\n".join(f"    {line}" for line in lines if not line.startswith("@@"))
