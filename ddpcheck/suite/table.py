"""Results as a table: a line per model and loss, a column per mode and batch norm."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from ddpcheck.suite.judge import Result
from ddpcheck.suite.zoo import matrix

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
