"""The matrix of runs as rows of text that fit a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from rich.text import Text

from ddpcheck.report.data import JUDGED, Report, Run
from ddpcheck.report.render import numbers, status, wording
from ddpcheck.report.render.terminal_page import one_line

STYLES: dict[str, str] = {
    "equivalent": "green",
    "divergent": "bold red",
    "accepted": "cyan",
    "not-checked": "yellow",
    "pass": "green",
    "fail": "red",
    "none": "yellow",
}
_GAPS = (2, 1)  # columns between cells: the wider one where it fits
_MAX_SETTING = 12
_INDENT = 2
_MIN_NAME = 10  # below this a cut parameter name tells nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class _Column:
    title: str
    cells: list[tuple[str, str]]  # text, style
    right: bool = False
    flexible: bool = False

    @property
    def width(self) -> int:
        """Characters of the widest cell, the title included."""
        return max(len(self.title), *(len(text) for text, _ in self.cells))


def cut(text: str, width: int) -> str:
    """Returns `text` cut to `width`, keeping its end: the specific part of a name."""
    return text if len(text) <= width else ".." + text[len(text) - width + 2 :]


def matrix(report: Report, *, limit: int, width: int) -> list[Text]:
    """Returns the matrix of at most `limit` runs, then one line per kind of the rest.

    Divergent runs are kept before unchecked ones, and those before equal ones.
    """
    kept, rest = _kept(report, limit)
    if not kept:
        return [Text("  no run was made", style=STYLES["not-checked"])]
    columns, gap = _fitting(_columns(report, kept), width)
    caption = _caption(columns, [report.runs[i] for i in kept], width)
    rows = [[(column.title, "dim") for column in columns]]
    rows += [[column.cells[i] for column in columns] for i in range(len(kept))]
    lines = [_line(row, columns, gap) for row in rows]
    return caption + lines + _more(report, rest)


def _caption(columns: list[_Column], runs: list[Run], width: int) -> list[Text]:
    """Returns the line that says what the numbers are, none where there are none.

    A gradient's excess looks like a gradient's size.
    """
    if not any(map(status.compared, runs)):
        return []
    shown = [c.title for c in columns if c.title in JUDGED]
    text = f"  excess of {', '.join(shown)}: at most 1 passes"
    short = "  excess: at most 1 passes"
    return [Text(text if len(text) <= width else short, style="dim")]


def _kept(report: Report, limit: int) -> tuple[list[int], list[int]]:
    order = {"divergent": 0, "not-checked": 1, "accepted": 2, "equivalent": 3}
    indices = range(len(report.runs))
    by_need = sorted(indices, key=lambda i: order[status.run_status(report, i)])
    if len(by_need) == limit + 1:  # a line "1 more run" would be as long as its row
        limit += 1
    return sorted(by_need[:limit]), sorted(by_need[limit:])


def _more(report: Report, rest: list[int]) -> list[Text]:
    lines = []
    for told, word in status.WORDS.items():
        runs = [report.runs[i] for i in rest if status.run_status(report, i) == told]
        if runs:
            text = f"  {numbers.counted(len(runs), 'more run')} {word}{_worst(runs)}"
            lines.append(Text(text, style=STYLES[told]))
    return lines


def _worst(runs: Iterable[Run]) -> str:
    found = [
        worst.excess
        for run in runs
        for kind in status.KINDS
        if (worst := status.quantity(run, kind).worst)
    ]
    if not found:
        return ""
    return f", worst excess {numbers.excess(max(found, key=numbers.rank_key))}"


def _columns(report: Report, kept: list[int]) -> list[_Column]:
    runs = [report.runs[index] for index in kept]
    several = len({run.dtype for run in report.runs}) > 1
    settings = [
        _setting("bn", runs, lambda run: run.batch_norm),
        _setting("loss", runs, lambda run: run.loss),
        _setting("noise", runs, lambda run: run.noise),
        _setting("dtype", runs, lambda run: run.dtype if several else "asis"),
    ]
    return [
        _texts("mode", [run.mode for run in runs]),
        _plain("W", [str(run.world_size) for run in runs]),
        *(column for column in settings if column),
        _quantity("gradients", runs),
        _plain("rel diff", [_rel_diff(run) for run in runs]),
        _Column(title="worst", cells=[(_name(r), "") for r in runs], flexible=True),
        _quantity("weights", runs),
        _quantity("buffers", runs),
        _Column(title="ranks", cells=[_agreement(run) for run in runs]),
        _Column(title="verdict", cells=[_verdict(report, index) for index in kept]),
    ]


def _setting(title: str, runs: list[Run], of: Callable[[Run], str]) -> _Column | None:
    """Returns the column of a setting, None where every run has it as is."""
    if all(of(run) == "asis" for run in runs):
        return None
    return _texts(title, [of(run) for run in runs])


def _texts(title: str, texts: list[str]) -> _Column:
    cells = [(cut(one_line(text), _MAX_SETTING), "") for text in texts]
    return _Column(title=title, cells=cells)


def _plain(title: str, texts: list[str]) -> _Column:
    return _Column(title=title, cells=[(text, "") for text in texts], right=True)


def _quantity(kind: str, runs: list[Run]) -> _Column:
    found = [status.quantity(run, kind) for run in runs]
    cells = [
        (status.quantity_text(one), STYLES[status.quantity_state(one)]) for one in found
    ]
    return _Column(title=kind, cells=cells, right=True)


def _rel_diff(run: Run) -> str:
    worst = run.gradients.worst
    return "-" if worst is None else numbers.number(worst.rel_diff)


def _name(run: Run) -> str:
    worst = run.gradients.worst
    return "-" if worst is None else one_line(worst.name)


def _agreement(run: Run) -> tuple[str, str]:
    told = wording.agreement(run)
    return {
        "not compared": ("-", STYLES["none"]),
        "agree": ("agree", STYLES["pass"]),
        "differ": ("DIFFER", STYLES["fail"]),
        "failed": ("failed", STYLES["fail"]),
    }[told]


def _verdict(report: Report, index: int) -> tuple[str, str]:
    told = status.run_status(report, index)
    return f"{status.SYMBOLS[told]} {status.WORDS[told]}", STYLES[told]


def _total(columns: list[_Column], gap: int) -> int:
    widths = [_MIN_NAME if column.flexible else column.width for column in columns]
    return _INDENT + sum(widths) + gap * (len(widths) - 1)


def _fitting(columns: list[_Column], width: int) -> tuple[list[_Column], int]:
    """Returns the columns and the gap that fit; what goes is told elsewhere."""
    for title in ("", "worst", "noise", "rel diff", "ranks", "buffers", "weights"):
        columns = [column for column in columns if column.title != title]
        for gap in _GAPS:
            if (room := width - _total(columns, gap)) >= 0:
                return [_narrowed(column, room) for column in columns], gap
    return columns, gap


def _narrowed(column: _Column, room: int) -> _Column:
    if not column.flexible:
        return column
    cells = [(cut(text, room + _MIN_NAME), style) for text, style in column.cells]
    return _Column(title=column.title, cells=cells)


def _line(cells: list[tuple[str, str]], columns: list[_Column], gap: int) -> Text:
    line = Text(" " * (_INDENT - gap))
    for (text, style), column in zip(cells, columns, strict=True):
        padded = text.rjust(column.width) if column.right else text.ljust(column.width)
        line.append(" " * gap)
        line.append(padded, style=style)
    line.rstrip()
    return line
