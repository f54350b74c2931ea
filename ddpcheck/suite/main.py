"""The conformance matrix of `ddpcheck --suite`, and its results as a table."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from itertools import groupby

from ddpcheck.compare import tolerance
from ddpcheck.errors.problem import usage_error
from ddpcheck.ranks.pool import SOLO, Pool, Preload, PreloadError
from ddpcheck.report.progress import Progress
from ddpcheck.run.modes.registry import mode_of
from ddpcheck.suite import cells as cells_module
from ddpcheck.suite.cells import Cell
from ddpcheck.suite.judge import Result
from ddpcheck.suite.runner import PRELOAD_MODULES, Runner, SuiteError
from ddpcheck.suite.zoo import matrix
from ddpcheck.target.options import Options

__all__ = ["main"]

_NOTHING_RAN = 3


def main(options: Options, *, is_quiet: bool = False) -> int:
    """Runs the matrix, prints a table; returns 0, 1 (a cell failed) or 3 (none ran).

    Args:
        options: world_sizes, modes, ps_reduce, batch_norm, loss, dtype, device,
            tolerance and timeout_s choose and set cells; ("asis",) for batch_norm and
            loss means all.
        is_quiet: prints failures and the last line, and no progress.

    Raises:
        UsageError: option-suite, option-value, environment-no-gpu.
    """
    chosen = list(_chosen(options))
    results: list[Result] = []
    broken = ""
    settings = _settings(options)
    what = Preload(modules=PRELOAD_MODULES)
    with (
        Progress(sys.stderr, wanted=not is_quiet) as progress,
        Pool(what, timeout_s=options.limit_s) as pool,
    ):
        try:
            pool.device = options.run_device
            pool.start()
            progress("importing torch")
            pool.wait_for_imports()
            _open_crews(pool, chosen)
            _run(Runner(pool, settings), chosen, results, progress)
        except (PreloadError, SuiteError) as error:
            broken = str(error).rstrip() + "\n"
    if results:
        show = short if is_quiet else render
        sys.stdout.write(show(results))
    if broken:
        sys.stdout.write(
            f"stopped after {len(results)} of {len(chosen)} cells\n{broken}"
        )
        return _NOTHING_RAN
    if not results:
        sys.stdout.write(summary(results))
        return _NOTHING_RAN
    return int(any(result.status == "FAILED" for result in results))


def _run(
    runner: Runner, chosen: list[Cell], results: list[Result], progress: Progress
) -> None:
    for case, group in groupby(chosen, key=lambda c: (c.row.model, c.row.loss)):
        progress(f"{len(results)} of {len(chosen)} cells: {' '.join(case)}")
        results += runner.run(group)


def _open_crews(pool: Pool, chosen: list[Cell]) -> None:
    pool.open(SOLO)
    modes = ((mode_of(c.row.mode), c.world_size) for c in chosen)
    crews = {mode.processes(size) for mode, size in modes if not mode.servers}
    for size in sorted(crews - {SOLO}):
        pool.open(size)


def _chosen(options: Options) -> Iterator[Cell]:
    sizes = options.world_sizes or matrix.WORLD_SIZES
    _check("world size", "--world-sizes", sizes, matrix.WORLD_SIZES)
    modes = options.modes or matrix.MODES
    _check("mode", "--modes", modes, matrix.MODES)
    batch_norms = _all_if_default(options.batch_norm, matrix.BATCH_NORMS)
    _check("batch norm mode", "--batch-norm", batch_norms, matrix.BATCH_NORMS)
    losses = _all_if_default(options.loss, matrix.CLASS_LOSSES)
    _check("loss", "--loss", losses, matrix.CLASS_LOSSES)
    for row in cells_module.rows():
        if options.ps_reduce and row.reduce not in ("", options.ps_reduce):
            continue
        if row.mode in modes and row.batch_norm in batch_norms and row.loss in losses:
            yield from cells_module.cells(row, sizes)


def _all_if_default(given: tuple[str, ...], every: tuple[str, ...]) -> tuple[str, ...]:
    return every if given == ("asis",) else given


def _check(
    what: str, option: str, given: Collection[object], known: Collection[object]
) -> None:
    for value in given:
        if value not in known:
            names = ", ".join(map(str, known))
            raise usage_error(
                slug="option-suite",
                message=f"the suite has no {what} {value}",
                expected=f"{option} from: {names}",
                found=str(value),
                fix=f"leave {option} out",
            )


def _settings(options: Options) -> dict[str, object]:
    dtype = "float64" if options.dtype == "auto" else options.dtype
    _check("dtype", "--dtype", (dtype,), ("float64", "float32"))
    if options.tolerance is not None:
        tolerance.check_chosen(options.tolerance, dtype)
    rtol = options.tolerance or tolerance.DEFAULT_RTOL[dtype]
    return {"dtype": dtype, "device": options.run_device, "rtol": rtol}


_GAP = "  "
NOISE = "+noise"

LEGEND = """\
ok         equals single-process training at every world size
predicted  differs from single-process training at world sizes above 1, as theory
           predicts, and equals the predicted training
FAILED     anything else; the world sizes are listed below
+noise     dropout is a function of the sample; in other rows dropout is off
"""


def render(results: Iterable[Result]) -> str:
    """Returns the table, its legend, the failures, and the counts last."""
    found = list(results)
    return "\n".join([_table(found), LEGEND, short(found)])


def short(results: Iterable[Result]) -> str:
    """Returns the failures, and the counts last."""
    found = list(results)
    failures = [result.why for result in found if result.status == "FAILED"]
    listed = ["\n".join(failures) + "\n"] if failures else []
    return "\n".join([*listed, summary(found)])


def summary(results: Iterable[Result]) -> str:
    """Returns the last line: what was found, in numbers."""
    counts = Counter(result.status for result in results)
    total = sum(counts.values())
    if not total:
        return "not checked: no cell was run\n"
    verdict = "FAILED" if counts["FAILED"] else "passed"
    return (
        f"{verdict}: {total} cells, {counts['ok']} equal to single-process training, "
        f"{counts['predicted']} different as predicted, {counts['FAILED']} failed\n"
    )


def _table(results: list[Result]) -> str:
    cells: dict[tuple[str, str], dict[str, list[Result]]] = {}
    for result in results:
        row = result.cell.row
        model = row.model + NOISE * (row.noise == "sample")
        line = cells.setdefault((model, row.loss), {})
        line.setdefault(row.column, []).append(result)
    columns = [
        name for name in _COLUMNS if any(name in line for line in cells.values())
    ]
    lines = [["model", "loss", *columns]]
    for (model, loss), line in cells.items():
        lines.append([model, loss, *(_word(line.get(name, [])) for name in columns)])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "".join(
        _GAP.join(
            text.ljust(width) for text, width in zip(line, widths, strict=True)
        ).rstrip()
        + "\n"
        for line in lines
    )


_COLUMNS = tuple(
    f"{mode} {name}"
    for mode in matrix.MODES
    for name in (*matrix.BATCH_NORMS, *matrix.REDUCTIONS)
)


def _word(results: list[Result]) -> str:
    """Returns the worst result of any world size."""
    statuses = {result.status for result in results}
    for status in ("FAILED", "predicted", "ok"):
        if status in statuses:
            return status
    return "-"
