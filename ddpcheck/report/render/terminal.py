"""A report as at most 25 lines of text, the verdict last."""

from __future__ import annotations

import io
import re

from rich.console import Console, Group
from rich.text import Text

from ddpcheck.report.data import Report
from ddpcheck.report.render import divergence, numbers, status, wording
from ddpcheck.report.render.terminal_findings import findings
from ddpcheck.report.render.terminal_matrix import STYLES, matrix
from ddpcheck.report.render.terminal_page import Budget, Page, one_line

MAX_LINES = 25
_MANY = 10_000
# Tried in turn until the report fits; what is cut stands in report.html.
_BUDGETS = (
    Budget(runs=6, whole=9, brief=9, facts=5, code=9, wrap=3, notes=3, spare=2),
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
            told=told,
            notes=1,
            worst=False,
            proofs=False,
        )
        for runs, brief, code, wrap, told in (
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
    told=_MANY,
    notes=_MANY,
    stacks=True,
)


def verdict_line(report: Report) -> str:
    """Returns the last line of the output, all that --quiet prints."""
    return one_line(wording.verdict_line(report))


def render(
    report: Report, *, verbose: bool = False, width: int = 80, report_path: str = ""
) -> Group:
    """Returns the report for a rich console of `width` columns.

    At most 25 lines unless `verbose`, which cuts nothing and adds stacks.
    `report_path` is where the full report lies, "" where none was written; it is
    the one text that is never cut or wrapped, so that it can be copied.
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
        no_color=False,  # the caller has decided; the environment is not asked again
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
    """Returns the sections, parted by as many blank lines as there is room for.

    The later border matters more: it parts the findings and the verdict.
    """
    lines = sections[-1]
    for section in reversed(sections[:-1]):
        blank = [Text()] if room > 0 else []
        lines = [*section, *blank, *lines]
        room -= 1
    return lines


def _sections(page: Page, report_path: str) -> list[list[Text]]:
    """Returns header, runs, one section per finding, and the end with the verdict."""
    runs = matrix(page.report, limit=page.budget.runs, width=page.width)
    # A line of its own, which scripts read.
    path = [Text(f"report: {one_line(report_path)}")] if report_path else []
    more = [*path, *_more(page, report_path)]
    end = [*_warnings(page), *_not_compared(page), *more, *_verdict(page)]
    return [
        _header(page),
        [*runs, *_worst(page), *_failed(page)],
        *findings(page),
        end,
    ]


def _header(page: Page) -> list[Text]:
    target = page.report.target
    told = wording.ended(page.report)
    first = page.wrapped(told, style=STYLES["not-checked"], most=_MANY) if told else []
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
    ]


def _scope(page: Page) -> list[Text]:
    """Returns what the verdict speaks of, in one line unless there is room for all."""
    told = wording.scope(page.report)
    if not told:
        return []
    # How often backward runs stands in the line above.
    brief = re.sub(r"accumulation \([^)]*\)", "accumulation", told)
    most = _MANY if page.budget.stacks else 1
    return page.wrapped(f"scope: {brief}", indent="  ", most=most)


def _worst(page: Page) -> list[Text]:
    found = divergence.worst(page.report)
    told_already = page.report.findings and not page.budget.worst
    if found is None or found.difference is None or told_already:
        return []
    worst = found.difference
    label = wording.run_labels(page.report)[found.run]
    what = f"{status.KIND_WORDS[found.kind]} of {worst.name}"
    where = f"{label}, {wording.place(worst)}"
    return page.labelled("worst", f"{what}, {where}: {wording.size(worst)}")


def _failed(page: Page) -> list[Text]:
    """Returns why runs were not checked, and what their ranks died of."""
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
    # What the reason has said already is not said again.
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
    # Why a run was not checked stands beneath the matrix.
    told = {status.run_why(report, index) for index in range(len(report.runs))}
    found = [item for item in report.not_compared if item.why not in told]
    if not found:
        return []
    shown = [f"{item.what} ({item.why})" for item in found[: page.budget.notes]]
    if len(found) > len(shown):
        shown.append(f"and {numbers.count(len(found) - len(shown))} more")
    total = numbers.count(len(found))
    return page.wrapped(f"not compared ({total}): {'; '.join(shown)}")


def _more(page: Page, report_path: str) -> list[Text]:
    """Returns what explains the causes and shows the difference, where any does."""
    found = [f.slug for f in page.report.findings if f.accepted is None]
    slugs = list(dict.fromkeys(found))
    others = " (or another slug)" if len(slugs) > 1 else ""
    parts = [f"ddpcheck --explain {slug}{others}" for slug in slugs[:1]]
    if report_path and page.report.reproduce:
        parts.append("reproduce.py next to the report")
    return page.wrapped(f"more: {'; '.join(parts)}", most=2) if parts else []


def _verdict(page: Page) -> list[Text]:
    told = status.report_status(page.report)
    return page.wrapped(verdict_line(page.report), style=STYLES[told], most=_MANY)
