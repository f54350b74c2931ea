"""The findings of a report as lines of text: facts, cause, fix, proof."""

from __future__ import annotations

from rich.text import Text

from ddpcheck.report.data import Finding, Fix, faults_first
from ddpcheck.report.render import numbers, wording
from ddpcheck.report.render.terminal_matrix import STYLES
from ddpcheck.report.render.terminal_page import CUT, Page

_SHOWN = 4  # last characters of a title that stand in one line, however it is wrapped
_LEAST_NAME = 12  # characters of a file's name and line


def findings(page: Page) -> list[list[Text]]:
    """Returns one block of lines per finding, accepted ones last, then the rest."""
    ordered = faults_first(page.report.findings)
    ordered.sort(key=lambda f: f.accepted is not None)
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
    lines += page.told("cause", finding.summary, style="bold")
    if finding.magnitude and page.budget.proofs:
        lines += page.labelled("size", finding.magnitude)
    if finding.fix and finding.accepted is None:
        lines += _fix(page, finding.fix)
    return lines + _end(page, finding)


def _brief(page: Page, finding: Finding) -> list[Text]:
    cause = page.told("cause", finding.summary, style="bold")
    lines = [*_title(page, finding), *cause]
    if finding.accepted is not None:
        return lines + _end(page, finding)
    if finding.fix:
        told = "" if page.budget.proofs else _unproven(finding.fix)
        lines += page.told("fix", told + _advice(finding.fix))
    return lines + (_end(page, finding) if page.budget.proofs else [])


def _unproven(fix: Fix) -> str:
    """Returns what stands before a fix whose proof has no line of its own."""
    if fix.verified is False:
        return "did not remove it: "
    told = wording.proven(fix)
    return f"{told}: " if told.startswith(("not", "located")) else ""


def _end(page: Page, finding: Finding) -> list[Text]:
    if finding.accepted is not None:
        return page.labelled("reason", finding.accepted)
    return page.labelled("proof", wording.proof(finding))


def _title(page: Page, finding: Finding) -> list[Text]:
    note = "accepted: " if finding.accepted is not None else ""
    before, after = f"{note}{finding.slug}", _in_runs(page, finding)
    places = _places(finding.where) if finding.where else [""]
    # Of a title that is too long the place loses folders first, then the runs are cut.
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
    """Returns the fix; its code stands only below the words that say what it is."""
    code = page.verbatim(fix.code)
    if not code:
        return page.told("fix", _advice(fix))
    title = f"; {wording.code_title(fix)}:"
    lines = page.told("fix", _advice(fix) + title)
    is_cut = not "".join(line.plain for line in lines).endswith(title[-_SHOWN:])
    return page.told("fix", _advice(fix)) if is_cut else [*lines, *code]


def _advice(fix: Fix) -> str:
    return fix.text if fix.safe else f"{fix.text} ({wording.safety(fix)})"
