"""A report as at most 25 lines of text, the verdict last.

In this order: what fits into how many lines (`Budget`, `Page`), the matrix of runs, the
findings, and the report as a whole.
"""

from __future__ import annotations

import io
import re
import textwrap
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from rich.console import Console, Group
from rich.text import Text

from ddpcheck.errors.problem import visible
from ddpcheck.report.data import JUDGED, Finding, Fix, Report, Run
from ddpcheck.report.render import divergence, numbers, status, wording

LABEL = 9  # width of "  facts  "
CUT = " ..."
_ALL_ELSEWHERE = " ... (all with -v)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """How much of each list is shown, and over how many lines a text may run.

    Attributes:
        runs: rows of the matrix.
        whole: findings that are shown in full.
        brief: the findings after those, shown as title, cause, fix and, with `proofs`,
            proof. The rest is shown by name.
        facts: of each finding.
        code: lines of a fix's code.
        wrap: lines of a text other than a cause or a fix.
        notes: warnings, reasons and entries of other lists.
        advice: lines of a cause or a fix, which are useless without their ends.
        worst: whether the worst tensor has a line even if there are findings.
        spare: lines that must remain for blank ones.
        stacks: whether stacks are shown.
        proofs: whether findings show proof and size.
        table: whether numbers of a script are shown that do not follow the world size.
        effects: whether those that do have a line with what they do.
    """

    runs: int
    whole: int
    brief: int
    facts: int
    code: int
    wrap: int
    notes: int
    advice: int = 3
    worst: bool = True
    spare: int = 0
    stacks: bool = False
    proofs: bool = True
    table: bool = False
    effects: bool = False


def one_line(text: str) -> str:
    """Returns `text` on one line, with what cannot be printed written out."""
    return " ".join(visible(text).split())


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A report, and the room that its text has."""

    report: Report
    budget: Budget
    width: int

    def wrapped(
        self,
        text: str,
        *,
        indent: str = "",
        hang: str = "  ",
        style: str = "",
        most: int | None = None,
        end: str = CUT,
    ) -> list[Text]:
        """Returns `text` over `most` lines, by default what the budget allows.

        `end` is what stands in place of what is cut.
        """
        lines = textwrap.wrap(
            one_line(text),
            self.width,
            initial_indent=indent,
            subsequent_indent=hang,
            max_lines=most or self.budget.wrap,
            placeholder=end,
        )
        return [Text(line, style=style) for line in lines]

    def holds(self, text: str) -> bool:
        """Returns whether `wrapped` shows all of a text."""
        rows = textwrap.wrap(one_line(text), self.width, subsequent_indent="  ")
        return len(rows) <= self.budget.wrap

    def labelled(
        self,
        label: str,
        text: str,
        *,
        style: str = "",
        most: int | None = None,
        end: str = CUT,
    ) -> list[Text]:
        """Returns `text` after its label, aligned with the other labelled texts."""
        indent = f"  {label}".ljust(LABEL)
        hang = " " * LABEL
        lines = self.wrapped(text, indent=indent, hang=hang, most=most, end=end)
        for index, line in enumerate(lines):
            line.stylize(style, LABEL)
            if index == 0:
                line.stylize("dim", 0, LABEL)
        return lines

    def advised(self, label: str, text: str, *, style: str = "") -> list[Text]:
        """Returns a cause or a fix; if it is cut, its end refers to -v."""
        most = self.budget.advice
        return self.labelled(label, text, style=style, most=most, end=_ALL_ELSEWHERE)

    def verbatim(self, code: str) -> list[Text]:
        """Returns code or a stack: its own lines, cut at the width, not re-wrapped.

        Where nothing is to be cut, a longer line goes on in the next.
        """
        indent = " " * (LABEL + 2)
        rows = [visible(row) for row in _rows(code)]
        limit = self.budget.code
        # A line saying "1 more line" would be as long as that line.
        shown = rows if len(rows) == limit + 1 else rows[:limit]
        if len(shown) < len(rows):
            rest = numbers.count(len(rows) - len(shown))
            shown = [*shown, f"... {rest} more lines"]
        if not self.budget.stacks:
            return [Text(_cut_end(indent + row, self.width)) for row in shown]
        room = self.width - len(indent)
        return [Text(indent + part) for row in shown for part in _parts(row, room)]

    def more(self, indent: str, rest: int) -> list[Text]:
        """Returns the line "and N more", none where nothing is left."""
        return [Text(f"{indent}and {numbers.count(rest)} more")] if rest > 0 else []


def _rows(code: str) -> list[str]:
    text = visible(code).expandtabs(4).strip("\n")
    return [row.rstrip() for row in text.split("\n")] if text.strip() else []


def _parts(row: str, room: int) -> list[str]:
    return [row[at : at + room] for at in range(0, len(row), room)] or [""]


def _cut_end(row: str, width: int) -> str:
    return row if len(row) <= width else row[: width - 3] + "..."


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
_MIN_NAME = 10  # a parameter name that is cut further is useless


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


def _cut_start(text: str, width: int) -> str:
    """Returns `text` cut to `width` from its left: names differ at their ends."""
    return text if len(text) <= width else ".." + text[len(text) - width + 2 :]


def _matrix(report: Report, *, limit: int, width: int) -> list[Text]:
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
    lines = [_joined_cells(row, columns, gap) for row in rows]
    return caption + lines + _more_runs(report, rest)


def _caption(columns: list[_Column], runs: list[Run], width: int) -> list[Text]:
    """Returns the line that explains the numbers, none if there are none.

    Without it the excess of a gradient could be read as its size.
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


def _more_runs(report: Report, rest: list[int]) -> list[Text]:
    lines = []
    for state, word in status.WORDS.items():
        runs = [report.runs[i] for i in rest if status.run_status(report, i) == state]
        if runs:
            count = numbers.counted(len(runs), "more run")
            text = f"  {count} {word}{_worst_excess(runs)}"
            lines.append(Text(text, style=STYLES[state]))
    return lines


def _worst_excess(runs: Iterable[Run]) -> str:
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
        _setting("reduce", runs, lambda run: run.reduce),
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
        _Column(
            title="worst", cells=[(_worst_name(r), "") for r in runs], flexible=True
        ),
        _quantity("weights", runs),
        _quantity("buffers", runs),
        _Column(title="ranks", cells=[_agreement(run) for run in runs]),
        _Column(
            title="verdict", cells=[_verdict_cell(report, index) for index in kept]
        ),
    ]


def _setting(title: str, runs: list[Run], of: Callable[[Run], str]) -> _Column | None:
    """Returns the column of a setting, None where every run has the default or none."""
    if all(of(run) in ("", "asis") for run in runs):
        return None
    return _texts(title, [of(run) or "-" for run in runs])


def _texts(title: str, texts: list[str]) -> _Column:
    cells = [(_cut_start(one_line(text), _MAX_SETTING), "") for text in texts]
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


def _worst_name(run: Run) -> str:
    worst = run.gradients.worst
    return "-" if worst is None else one_line(worst.name)


def _agreement(run: Run) -> tuple[str, str]:
    state = wording.agreement(run)
    return {
        "not compared": ("-", STYLES["none"]),
        "agree": ("agree", STYLES["pass"]),
        "differ": ("DIFFER", STYLES["fail"]),
        "failed": ("failed", STYLES["fail"]),
    }[state]


def _verdict_cell(report: Report, index: int) -> tuple[str, str]:
    state = status.run_status(report, index)
    return f"{status.SYMBOLS[state]} {status.WORDS[state]}", STYLES[state]


def _total(columns: list[_Column], gap: int) -> int:
    widths = [_MIN_NAME if column.flexible else column.width for column in columns]
    return _INDENT + sum(widths) + gap * (len(widths) - 1)


def _fitting(columns: list[_Column], width: int) -> tuple[list[_Column], int]:
    """Returns the columns and the gap that fit; the rest is shown elsewhere."""
    for title in ("", "worst", "noise", "rel diff", "ranks", "buffers", "weights"):
        columns = [column for column in columns if column.title != title]
        for gap in _GAPS:
            if (room := width - _total(columns, gap)) >= 0:
                return [_narrowed(column, room) for column in columns], gap
    return columns, gap


def _narrowed(column: _Column, room: int) -> _Column:
    if not column.flexible:
        return column
    cells = [
        (_cut_start(text, room + _MIN_NAME), style) for text, style in column.cells
    ]
    return _Column(title=column.title, cells=cells)


def _joined_cells(
    cells: list[tuple[str, str]], columns: list[_Column], gap: int
) -> Text:
    line = Text(" " * (_INDENT - gap))
    for (text, style), column in zip(cells, columns, strict=True):
        padded = text.rjust(column.width) if column.right else text.ljust(column.width)
        line.append(" " * gap)
        line.append(padded, style=style)
    line.rstrip()
    return line


_SHOWN = 4  # last characters of a title that are in one line however it is wrapped
_LEAST_NAME = 12  # characters of a file's name and line


def _findings(page: Page) -> list[list[Text]]:
    """Returns one block of lines per finding, then the rest."""
    ordered = page.report.findings
    whole, brief = page.budget.whole, page.budget.brief
    blocks = [_whole(page, finding) for finding in ordered[:whole]]
    blocks += [_brief(page, finding) for finding in ordered[whole : whole + brief]]
    rest = [finding.slug for finding in ordered[whole + brief :]]
    if rest:
        more = numbers.counted(len(rest), "more finding")
        blocks.append(page.wrapped(f"{more}: {', '.join(rest)}"))
    return blocks


def _whole(page: Page, finding: Finding) -> list[Text]:
    lines = [*_title(page, finding), *_facts(page, finding)]
    lines += page.advised("cause", finding.summary, style="bold")
    if text := wording.start(finding):
        lines += page.labelled("start", text)
    if finding.ruled_out:
        lines += _ruled_out(page, finding)
    if finding.magnitude and page.budget.proofs:
        lines += page.labelled("size", finding.magnitude)
    if finding.fix and finding.accepted is None:
        lines += _fix(page, finding.fix)
    return lines + _end(page, finding)


def _ruled_out(page: Page, finding: Finding) -> list[Text]:
    if not page.budget.stacks:  # there is room for names alone
        return page.labelled("not", wording.ruled_out_in_brief(finding))
    lines = []
    for index, line in enumerate(wording.ruled_out(finding)):
        lines += page.labelled("" if index else "not", line)
    return lines


def _brief(page: Page, finding: Finding) -> list[Text]:
    cause = page.advised("cause", finding.summary, style="bold")
    lines = [*_title(page, finding), *cause]
    if finding.accepted is not None:
        return lines + _end(page, finding)
    if finding.fix:
        proof = "" if page.budget.proofs else _unproven(finding.fix)
        lines += page.advised("fix", proof + wording.advice(finding.fix))
    return lines + (_end(page, finding) if page.budget.proofs else [])


def _unproven(fix: Fix) -> str:
    """Returns the words before a fix that has no separate line of proof."""
    if fix.verified is False:
        return "did not remove it: "
    proof = wording.proven(fix)
    return f"{proof}: " if proof.startswith(("not", "located")) else ""


def _end(page: Page, finding: Finding) -> list[Text]:
    if finding.accepted is not None:
        return page.labelled("reason", finding.accepted)
    return page.labelled("proof", wording.proof(finding))


def _title(page: Page, finding: Finding) -> list[Text]:
    note = "accepted: " if finding.accepted is not None else ""
    before, after = f"{note}{finding.slug}", _in_runs(page, finding)
    places = _places(finding.where) if finding.where else [""]
    # If a title is too long, folders of the place are cut first, then the runs.
    titles = [f"{before}{place}{end}" for end in (after, CUT) for place in places]
    title = next(filter(page.holds, titles), titles[-1])
    if title.endswith(CUT):
        title = title.removesuffix(CUT) + after
    return page.wrapped(title, style=STYLES["accepted" if note else "divergent"])


def _places(where: str) -> list[str]:
    """Returns " at file.py:3", whole, then with less and less of the path's left."""
    parts = where.split("/")
    shorter = ["/".join(["...", *parts[n:]]) for n in range(1, len(parts))]
    name = parts[-1]
    ends = [f"...{name[n:]}" for n in range(4, max(4, len(name) - _LEAST_NAME))]
    found = [place for place in (*shorter, *ends) if len(place) < len(where)]
    return [f" at {place}" for place in (where, *found)]


def _in_runs(page: Page, finding: Finding) -> str:
    named = wording.named_runs(page.report, finding.runs)
    return f" in {named}" if named else ""


def _facts(page: Page, finding: Finding) -> list[Text]:
    shown = list(finding.facts[: page.budget.facts])
    rest = len(finding.facts) - len(shown)
    if rest:
        shown[-1] += f" (and {numbers.count(rest)} more)"
    lines = []
    for index, fact in enumerate(shown):
        lines += page.labelled("" if index else "facts", fact)
    return lines


def _fix(page: Page, fix: Fix) -> list[Text]:
    """Returns the fix; its code is shown only after its title."""
    code = page.verbatim(fix.code)
    if not code:
        return page.advised("fix", wording.advice(fix))
    title = f"; {wording.code_title(fix)}:"
    lines = page.advised("fix", wording.advice(fix) + title)
    is_cut = not "".join(line.plain for line in lines).endswith(title[-_SHOWN:])
    return page.advised("fix", wording.advice(fix)) if is_cut else [*lines, *code]


MAX_LINES = 25
_MANY = 10_000
# Tried in turn until the report fits; report.html has what is cut.
_BUDGETS = (
    Budget(
        runs=6,
        whole=9,
        brief=9,
        facts=5,
        code=9,
        wrap=3,
        notes=3,
        spare=2,
        table=True,
        effects=True,
    ),
    Budget(
        runs=6,
        whole=9,
        brief=9,
        facts=5,
        code=9,
        wrap=3,
        notes=3,
        spare=2,
        effects=True,
    ),
    Budget(runs=6, whole=9, brief=9, facts=2, code=7, wrap=3, notes=3, worst=False),
    Budget(runs=6, whole=9, brief=9, facts=1, code=7, wrap=3, notes=3, worst=False),
    Budget(runs=5, whole=9, brief=9, facts=1, code=5, wrap=2, notes=2, worst=False),
    Budget(runs=5, whole=1, brief=3, facts=1, code=5, wrap=2, notes=2, worst=False),
    Budget(runs=4, whole=1, brief=3, facts=1, code=4, wrap=2, notes=1, worst=False),
    # Every cause and fix before any proof but the first, and in full sentences first.
    *(
        Budget(
            runs=runs,
            whole=1,
            brief=brief,
            facts=1,
            code=code,
            wrap=wrap,
            advice=advice,
            notes=1,
            worst=False,
            proofs=False,
        )
        for runs, brief, code, wrap, advice in (
            (4, 9, 3, 2, 3),
            (3, 9, 2, 2, 3),
            (2, 9, 2, 1, 3),
            (2, 9, 1, 1, 3),
            (2, 9, 0, 1, 2),
            (2, 2, 1, 1, 3),
            (2, 2, 0, 1, 2),
            (2, 1, 1, 1, 3),
            (2, 0, 2, 2, 3),
            (2, 0, 1, 1, 3),
            (2, 0, 1, 1, 1),
        )
    ),
)
_UNLIMITED = Budget(
    runs=_MANY,
    whole=_MANY,
    brief=_MANY,
    facts=_MANY,
    code=_MANY,
    wrap=_MANY,
    advice=_MANY,
    notes=_MANY,
    stacks=True,
    table=True,
    effects=True,
)


def verdict_line(report: Report) -> str:
    """Returns the last line of the output, all that --quiet prints."""
    return one_line(wording.verdict_line(report))


def render(
    report: Report, *, verbose: bool = False, width: int = 80, report_path: str = ""
) -> Group:
    """Returns the report for a rich console of `width` columns.

    At most 25 lines unless `verbose`, which cuts nothing and adds stacks.
    `report_path` is the path of the full report, "" if none was written; it is never
    cut or wrapped, so that it can be copied.
    """
    return Group(*_lines(report, verbose=verbose, width=width, report_path=report_path))


def to_text(
    report: Report,
    *,
    color: bool,
    width: int,
    verbose: bool = False,
    report_path: str = "",
) -> str:
    """Returns the report as text, with ANSI colours where `color`."""
    lines = _lines(report, verbose=verbose, width=width, report_path=report_path)
    if not color:
        return "".join(f"{line.plain}\n" for line in lines)
    out = io.StringIO()
    console = Console(
        file=out,
        width=width,
        force_terminal=True,
        color_system="standard",
        no_color=False,  # the caller has decided, not the environment
        legacy_windows=False,
    )
    for line in lines:
        console.print(line, soft_wrap=True, highlight=False)
    return out.getvalue()


def _lines(
    report: Report, *, verbose: bool, width: int, report_path: str
) -> list[Text]:
    for budget in (_UNLIMITED,) if verbose else _BUDGETS:
        page = Page(report=report, budget=budget, width=width)
        sections = _sections(page, report_path)
        room = MAX_LINES - sum(map(len, sections))
        if room >= budget.spare:
            break
    return _joined(sections, _MANY if verbose else room)


def _joined(sections: list[list[Text]], room: int) -> list[Text]:
    """Returns the sections, separated by as many blank lines as there is room for.

    Blank lines are added from the end: the findings and the verdict come last.
    """
    lines = sections[-1]
    for section in reversed(sections[:-1]):
        blank = [Text()] if room > 0 else []
        lines = [*section, *blank, *lines]
        room -= 1
    return lines


def _sections(page: Page, report_path: str) -> list[list[Text]]:
    """Returns header, runs, one section per finding, and the end with the verdict."""
    runs = _matrix(page.report, limit=page.budget.runs, width=page.width)
    # A line of its own, which scripts read.
    path = [Text(f"report: {one_line(report_path)}")] if report_path else []
    more = [*path, *_more(page, report_path)]
    end = [*_warnings(page), *_not_compared(page), *more, *_verdict(page)]
    return [
        _header(page),
        [*runs, *_worst(page), *_failed(page)],
        *_findings(page),
        end,
    ]


def _header(page: Page) -> list[Text]:
    target = page.report.target
    ended = wording.ended(page.report)
    first = (
        page.wrapped(ended, style=STYLES["not-checked"], most=_MANY) if ended else []
    )
    if not target.num_tensors and not page.report.runs:  # a usage error
        return first + page.wrapped(
            f"ddpcheck {target.name}: nothing was trained", style="bold"
        )
    batch = f"batch {numbers.count(target.batch_size)}"
    what = ", ".join((wording.model(page.report), batch, wording.dtypes(page.report)))
    steps = numbers.counted(target.steps, "step")
    one = wording.reference(page.report)
    against = ", ".join(filter(None, (one, target.optimizer, steps)))
    reference = f"reference: {against}; {wording.tolerance(page.report)}"
    return [
        *first,
        *page.wrapped(f"ddpcheck {target.name}: {what}", style="bold"),
        *page.wrapped(reference, indent="  "),
        *_scope(page),
        *_verdicts(page),
        *_facts_of_script(page),
    ]


def _scope(page: Page) -> list[Text]:
    """Returns the scope of the verdict, in one line unless there is room for all."""
    scope = wording.scope(page.report)
    if not scope:
        return []
    # The line above has the number of backward passes.
    brief = re.sub(r"accumulation \([^)]*\)", "accumulation", scope)
    most = _MANY if page.budget.stacks else 1
    return page.wrapped(f"scope: {brief}", indent="  ", most=most)


def _verdicts(page: Page) -> list[Text]:
    """Returns the three verdicts of a script."""
    lines = wording.parts(page.report)
    return [
        part
        for line in lines
        for part in page.wrapped(line, indent="  ", hang="    ", style="bold", most=2)
    ]


def _facts_of_script(page: Page) -> list[Text]:
    """Returns the table of what follows the world size; all of it where there is room.

    What a number does is below its row, where it is another than in one process.
    """
    table = wording.facts(page.report)
    is_whole = page.budget.table
    shown = range(len(table.rows)) if is_whole else table.moved
    if not shown:
        return []
    width = max(len(table.rows[i][0]) for i in shown)
    columns = [
        (title, [table.rows[i][1][n] for i in shown])
        for n, title in enumerate(table.columns)
    ]
    room = [max(len(title), *map(len, cells)) for title, cells in columns]

    def line(what: str, cells: Iterable[str]) -> str:
        padded = (cell.rjust(w) for cell, w in zip(cells, room, strict=True))
        return f"  {what.ljust(width)}  {'  '.join(padded)}"

    lines = [Text(line("", table.columns), style="dim")]
    for index in shown:
        what, cells, effect = table.rows[index]
        lines.append(Text(line(what, cells)))
        if page.budget.effects and (index in table.moved or page.budget.stacks):
            most = _MANY if page.budget.stacks else page.budget.wrap
            lines += page.wrapped(effect, indent="    ", hang="    ", most=most)
    return lines


def _worst(page: Page) -> list[Text]:
    found = divergence.worst(page.report)
    is_in_findings = page.report.findings and not page.budget.worst
    if found is None or found.difference is None or is_in_findings:
        return []
    worst = found.difference
    label = wording.run_labels(page.report)[found.run]
    what = f"{status.KIND_WORDS[found.kind]} of {worst.name}"
    where = f"{label}, {wording.place(worst)}"
    return page.labelled("worst", f"{what}, {where}: {wording.size(worst)}")


def _failed(page: Page) -> list[Text]:
    """Returns why runs were not checked, and how their ranks failed."""
    lines: list[Text] = []
    for found in wording.unchecked(page.report)[: page.budget.notes]:
        text = f"{found.head}: {found.why}"
        lines += page.wrapped(text, indent="  ", hang="    ", style="yellow")
        for index in found.indices:
            lines += _faults(page, index)
    return lines


def _faults(page: Page, index: int) -> list[Text]:
    lines = []
    run, all_of_it = page.report.runs[index], page.budget.stacks
    # A failure that is part of the reason is not repeated.
    faults = [f for f in run.faults if all_of_it or f.summary not in run.why]
    rest = len(faults) - page.budget.notes
    more = f" (and {numbers.count(rest)} more)" if rest > 0 else ""
    for fault in faults[: page.budget.notes]:
        text = wording.fault_line(fault) + more
        lines += page.wrapped(text, indent="    ", hang="      ")
        more = ""
        if page.budget.stacks:
            lines += page.verbatim(fault.stack) + page.verbatim(fault.stderr)
    return lines


def _warnings(page: Page) -> list[Text]:
    found = page.report.warnings
    lines = []
    for text in found[: page.budget.notes]:
        lines += page.wrapped(f"warning: {text}", style="yellow")
    return lines + page.more("  ", len(found) - page.budget.notes)


def _not_compared(page: Page) -> list[Text]:
    report = page.report
    # The reason why a run was not checked is below the matrix.
    shown_above = {status.run_why(report, i) for i in range(len(report.runs))}
    found = [item for item in report.not_compared if item.why not in shown_above]
    if not found:
        return []
    shown = [f"{item.what} ({item.why})" for item in found[: page.budget.notes]]
    if len(found) > len(shown):
        shown.append(f"and {numbers.count(len(found) - len(shown))} more")
    total = numbers.count(len(found))
    return page.wrapped(f"not compared ({total}): {'; '.join(shown)}")


def _more(page: Page, report_path: str) -> list[Text]:
    """Returns the line that names the page of the cause and the files."""
    found = [f.slug for f in page.report.findings if f.accepted is None]
    slugs = list(dict.fromkeys(found))
    others = " (or another slug)" if len(slugs) > 1 else ""
    parts = [f"ddpcheck --explain {slug}{others}" for slug in slugs[:1]]
    texts = {"fixed.py": page.report.fixed, "reproduce.py": page.report.reproduce}
    written = [name for name, text in texts.items() if text and report_path]
    if written:
        parts.append(f"{' and '.join(written)} next to the report")
    return page.wrapped(f"more: {'; '.join(parts)}", most=2) if parts else []


def _verdict(page: Page) -> list[Text]:
    state = status.report_status(page.report)
    return page.wrapped(verdict_line(page.report), style=STYLES[state], most=_MANY)
