"""A report as SARIF 2.1.0, for code scanning: one result per finding.

Source: docs.oasis-open.org/sarif/sarif/v2.1.0, sections 3.13 to 3.52. Viewers place a
result by file and line: a finding without a place is put on the target's first line.
Braces stay single, though 3.11.5 doubles them in texts: a viewer that does not undo it
would show code that is wrong.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any
from urllib.parse import quote

from ddpcheck.errors.problem import visible
from ddpcheck.report.data import Finding, Report
from ddpcheck.report.render import status, wording

_SCHEMA = (
    "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/"
    "sarif-schema-2.1.0.json"
)
_ROOT = "SRCROOT"
_UNKNOWN = "unknown"
_NO_PAGE = "Ranks differ from the single-process run, and no rule explains it."


def to_sarif(report: Report, *, pages: Mapping[str, str]) -> str:
    """Returns the report as SARIF; `pages` has the pages of its rules by slug.

    Accepted findings are results with a suppression. What could not be checked is no
    result but a notification of a run that was not successful.
    """
    findings = list(report.findings) or _unexplained(report)
    rules = list(dict.fromkeys(finding.slug for finding in findings))
    run = {
        "tool": {"driver": _driver(report, rules, pages)},
        "invocations": [_invocation(report)],
        "originalUriBaseIds": {_ROOT: {"description": _message("the folder checked")}},
        "results": [_result(report, f, rules.index(f.slug)) for f in findings],
        "columnKind": "unicodeCodePoints",
    }
    if state := wording.scope(report):
        run["properties"] = {"scope": visible(state)}
    log = {"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}
    return json.dumps(log, indent=1, sort_keys=True, allow_nan=False) + "\n"


def _unexplained(report: Report) -> list[Finding]:
    """Returns a finding for a divergence that has none."""
    if status.report_status(report) != "divergent":
        return []
    runs = tuple(i for i, r in enumerate(report.runs) if r.verdict == "divergent")
    summary = wording.verdict_line(report)
    return [Finding(slug=_UNKNOWN, link="", runs=runs, summary=summary)]


def _driver(
    report: Report, rules: list[str], pages: Mapping[str, str]
) -> dict[str, Any]:
    driver: dict[str, Any] = {
        "name": "ddpcheck",
        "rules": [_rule(slug, pages.get(slug, _NO_PAGE)) for slug in rules],
    }
    if version := report.environment.get("ddpcheck"):
        driver["version"] = visible(version)
    return driver


def _rule(slug: str, page: str) -> dict[str, Any]:
    first, _, rest = page.strip().partition("\n")
    text = rest.strip() or first
    return {
        "id": visible(slug),
        "shortDescription": _message(first),
        "fullDescription": _message(first),
        "help": {**_message(text), "markdown": visible(text)},
        "defaultConfiguration": {"level": "error"},
    }


def _invocation(report: Report) -> dict[str, Any]:
    state = status.report_status(report)
    notes = [_notification("error", text) for text in (wording.ended(report),) if text]
    notes += [_notification("warning", text) for text in report.warnings]
    labels = wording.run_labels(report)
    for index, label in enumerate(labels):
        if why := status.run_why(report, index):
            level = "warning" if status.passes(report) else "error"
            notes.append(_notification(level, f"{label} was not checked: {why}"))
    if state == "not-checked" and not report.runs:
        notes.append(_notification("error", wording.verdict_line(report)))
    return {
        "commandLine": visible(report.command),
        "executionSuccessful": state != "not-checked" and not report.ended,
        "exitCode": report.exit_code,
        "toolExecutionNotifications": notes,
    }


def _notification(level: str, text: str) -> dict[str, Any]:
    return {"level": level, "message": _message(text)}


def _result(report: Report, finding: Finding, index: int) -> dict[str, Any]:
    labels = wording.run_labels(report)
    runs = [labels[i] for i in finding.runs]
    result: dict[str, Any] = {
        "ruleId": visible(finding.slug),
        "ruleIndex": index,
        "level": "error",
        "message": _message(_text(finding, runs)),
        "locations": [_location(report, finding)],
        "partialFingerprints": {"finding/v1": _fingerprint(report, finding)},
        "properties": {"link": visible(finding.link), "runs": runs},
    }
    if finding.accepted is not None:
        result["suppressions"] = [
            {
                "kind": "external",
                "status": "accepted",
                "justification": visible(finding.accepted),
            }
        ]
    return result


def _text(finding: Finding, runs: list[str]) -> str:
    """Returns facts, cause, fix and proof; the first sentence stands alone in lists."""
    parts = [f"{finding.summary} ({', '.join(runs)}).", *finding.facts]
    parts += wording.beside_facts(finding)
    if finding.fix is not None:
        parts += wording.advice_lines(finding.fix)
    parts.append(wording.proof(finding))
    return "\n".join(parts)


def _location(report: Report, finding: Finding) -> dict[str, Any]:
    path, _, line = (finding.where or "").rpartition(":")
    if not path or not line.isdecimal() or int(line) < 1:
        path, line = report.target.path or report.target.name, "1"
    region = {"startLine": int(line)}
    return {"physicalLocation": {"artifactLocation": _artifact(path), "region": region}}


def _artifact(path: str) -> dict[str, str]:
    pure = PurePath(path)
    uri = quote(visible(pure.as_posix()))
    if pure.is_absolute():
        return {"uri": f"file://{uri}"}
    return {"uri": uri, "uriBaseId": _ROOT}


def _fingerprint(report: Report, finding: Finding) -> str:
    """Returns what stays while lines move: the target's name and the slug.

    A finding that is accepted in some runs only counts as two.
    """
    text = f"{report.target.name}\n{finding.slug}"
    others = [f for f in report.findings if f.slug == finding.slug]
    if finding.accepted is None and any(f.accepted is not None for f in others):
        text += "\nnot accepted"
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()[:32]


def _message(text: str) -> dict[str, str]:
    return {"text": visible(text) or " "}
