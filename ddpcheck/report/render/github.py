"""A report for GitHub Actions: workflow commands, and a Markdown job summary."""

from __future__ import annotations

import re

from ddpcheck.errors.problem import visible
from ddpcheck.report.data import Finding, Report
from ddpcheck.report.render import status, wording

_HARMLESS = " .,=+-/()"
# What would open a list or a heading at the start of a line: "- ", "+ ", "1. ", "=".
_BLOCK_START = re.compile(r"^(?:\d+)?([-+=.)])(?:\s|[-=]|$)")
_BACKTICKS = re.compile("`+")


def to_annotations(report: Report) -> str:
    """Returns one workflow command per line, errors first.

    GitHub shows ten annotations of a kind per step, so each finding is one.
    """
    lines = [*_errors(report), *_warnings(report), *_notices(report)]
    return "".join(f"{line}\n" for line in lines)


def _errors(report: Report) -> list[str]:
    state = status.report_status(report)
    ended = wording.ended(report)
    found = [_at_target(report, "error", ended)] if ended else []
    found += [_finding("error", f) for f in report.findings if f.accepted is None]
    if state == "divergent" and not found:
        found = [_at_target(report, "error", wording.verdict_line(report))]
    level = "warning" if status.passes(report) else "error"
    found += [
        _at_target(report, level, _unchecked(report, runs))
        for runs in wording.unchecked(report)
        if runs.why
    ]
    if state == "not-checked":
        found.append(_at_target(report, "error", wording.verdict_line(report)))
    return found


def _unchecked(report: Report, runs: wording.Unchecked) -> str:
    faults = [f for index in runs.indices for f in report.runs[index].faults]
    return "\n".join((f"{runs.head}: {runs.why}", *map(wording.fault_line, faults)))


def _warnings(report: Report) -> list[str]:
    return [_at_target(report, "warning", text) for text in report.warnings]


def _notices(report: Report) -> list[str]:
    found = [_finding("notice", f) for f in report.findings if f.accepted is not None]
    if status.passes(report):
        found.append(_at_target(report, "notice", wording.verdict_line(report)))
    return found


def _finding(level: str, finding: Finding) -> str:
    path, _, line = (finding.where or "").rpartition(":")
    place = {"file": path, "line": line} if path and line.isdecimal() else {}
    parts = [*finding.facts, finding.summary, *wording.beside_facts(finding)]
    if finding.accepted is not None:
        parts.append(f"accepted: {finding.accepted}")
    else:
        fix = finding.fix
        parts += [wording.advice(fix)] if fix else []
        parts += [f"{wording.code_title(fix)}:", fix.code] if fix and fix.code else []
        parts.append(wording.proof(finding))
    return _command(level, "\n".join(parts), title=finding.slug, **place)


def _at_target(report: Report, level: str, text: str) -> str:
    return _command(level, text, title="ddpcheck", file=report.target.path)


def _command(level: str, text: str, **properties: str) -> str:
    known = {key: value for key, value in properties.items() if value}
    joined = ",".join(f"{key}={_property(value)}" for key, value in known.items())
    return f"::{level} {joined}::{_data(text)}"


def _data(text: str) -> str:
    """Returns a message as the runner's own toolkit escapes it.

    Source: escapeData in actions/toolkit, packages/core/src/command.ts.
    """
    escaped = visible(text).replace("%", "%25")
    return escaped.replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def to_summary(report: Report) -> str:
    """Returns the job summary: verdict, matrix, findings, what was not compared."""
    state = status.report_status(report)
    parts = [
        f"## ddpcheck: {status.WORDS[state]}",
        f"{_code(report.target.name)}: {_plain(wording.verdict_sentence(report))}",
        _plain(f"Scope: {scope}") if (scope := wording.scope(report)) else "",
        _listed("Verdicts", wording.parts(report)),
        _matrix(report),
        _facts(report),
        *(_summary_finding(finding) for finding in report.findings),
        _listed("Warnings about this check", report.warnings),
        _listed(
            "Not compared",
            [f"{what}: {why}" for what, why in status.not_compared(report)],
        ),
        f"{_plain(wording.tolerance(report))}; {_plain(wording.EXCESS_FORMULA)}",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _matrix(report: Report) -> str:
    if not report.runs:
        return "No run was made."
    kinds = status.shown_kinds(report)
    titles = [status.KIND_WORDS[kind] for kind in kinds]
    rows = [
        ["mode", "W", "settings", *titles, "ranks", "verdict"],
        ["---", "---:", "---", *("---:" for _ in kinds), "---", "---"],
    ]
    rows += [_matrix_row(report, index) for index in range(len(report.runs))]
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    return f"Worst excess of each quantity, at most 1 passes:\n\n{table}"


def _facts(report: Report) -> str:
    """Returns the table of what may follow the world size, "" without any."""
    table = wording.facts(report)
    if not table.rows:
        return ""
    head = ["number", *table.columns, "what it does"]
    rows = [head, ["---", *("---:" for _ in table.columns), "---"]]
    rows += [[what, *cells, effect] for what, cells, effect in table.rows]
    lines = [f"| {' | '.join(map(_inline, row))} |" for row in rows]
    return "What may follow the world size:\n\n" + "\n".join(lines)


def _matrix_row(report: Report, index: int) -> list[str]:
    run, state = report.runs[index], status.run_status(report, index)
    cells = [
        status.quantity_text(status.quantity(run, kind))
        for kind in status.shown_kinds(report)
    ]
    settings = wording.run_settings(report)[index]
    verdict = f"{status.SYMBOLS[state]} {status.WORDS[state]}"
    why = status.run_why(report, index)
    return [
        _inline(run.mode),
        str(run.world_size),
        _inline(settings) or "-",
        *map(_inline, cells),
        wording.agreement(run),
        f"**{_inline(verdict)}**" + (f": {_inline(why)}" if why else ""),
    ]


def _summary_finding(finding: Finding) -> str:
    where = f" at {_code(finding.where)}" if finding.where else ""
    lines = [f"### {_code(finding.slug)}{where}", _listed("", finding.facts)]
    lines.append(f"**Cause:** {_plain(finding.summary)}")
    if beside := wording.beside_facts(finding):
        lines.append(_listed("", beside))
    if finding.accepted is not None:
        lines.append(f"**Accepted because:** {_plain(finding.accepted)}")
    elif finding.fix:
        lines.append(
            f"**Fix** ({wording.safety(finding.fix)}): {_plain(finding.fix.text)}"
        )
        if block := _block(finding.fix.code):
            lines += [f"{_plain(wording.code_title(finding.fix).capitalize())}:", block]
    lines.append(_plain(wording.proof(finding)))
    return "\n\n".join(line for line in lines if line)


def _listed(title: str, items: tuple[str, ...] | list[str]) -> str:
    rows = "\n".join(f"- {_plain(item)}" for item in items)
    return f"### {title}\n\n{rows}" if title and rows else rows


def _plain(text: str) -> str:
    """Returns a line that Markdown reads as text, even where it looks like a list."""
    opening = _BLOCK_START.match(" ".join(text.split()))
    return _inline(
        text, kept=_HARMLESS.replace(opening[1], "") if opening else _HARMLESS
    )


def _inline(text: str, *, kept: str = _HARMLESS) -> str:
    """Returns text within a line or cell, every special character an entity."""
    flat = " ".join(visible(text).split())
    return "".join(c if c.isalnum() or c in kept else f"&#{ord(c)};" for c in flat)


def _code(text: str) -> str:
    return f"<code>{_inline(text)}</code>"


def _block(code: str) -> str:
    """Returns a fenced block whose fence is longer than any inside."""
    if not code.strip():
        return ""
    longest = max(map(len, _BACKTICKS.findall(code)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}python\n{visible(code)}\n{fence}"
