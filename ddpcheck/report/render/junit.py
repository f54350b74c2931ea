"""A report as JUnit XML: one test case per run."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

from ddpcheck.errors.problem import visible
from ddpcheck.report.data import DATA, RESUME, Report
from ddpcheck.report.render import divergence, status, wording

_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_TAGS: dict[status.Status, str] = {
    "divergent": "failure",
    "not-checked": "error",
    "accepted": "skipped",
}

_COUNTS = {  # in which what is compared is no tensor
    DATA: "the samples of the ranks",
    RESUME: "the resumed run",
}


def to_junit(report: Report) -> str:
    """Returns the report as JUnit XML.

    A divergent run is a failure, one not checked an error, an accepted one skipped.
    Where the runs alone would read as a pass that the report is not, a last test case
    "verdict" says so: no run at all is an error, never an empty success.
    """
    suite = ET.Element("testsuite", name=_text(f"ddpcheck {report.target.name}"))
    verdicts = "; ".join(wording.parts(report))
    named = {"ended": report.ended, "scope": wording.scope(report)}
    _properties(suite, {**named, "verdicts": verdicts})
    labels = wording.run_labels(report)
    for index, run in enumerate(report.runs):
        case = _case(suite, report, labels[index], run.seconds)
        state = status.run_status(report, index)
        _outcome(case, state, _message(report, index), _details(report, index))
    _verdict(suite, report)
    counts = {"tests": "testcase", "failures": "failure", "errors": "error"}
    for name, tag in {**counts, "skipped": "skipped"}.items():
        suite.set(name, str(sum(1 for _ in suite.iter(tag))))
    suite.set("time", f"{report.seconds:.3f}")
    suites = ET.Element("testsuites")
    suites.append(suite)
    ET.indent(suites)
    body = ET.tostring(suites, encoding="unicode")
    return f'<?xml version="1.0" encoding="utf-8"?>\n{body}\n'


def _properties(suite: ET.Element, named: dict[str, str]) -> None:
    found = {name: text for name, text in named.items() if text}
    parent = ET.SubElement(suite, "properties") if found else suite
    for name, text in found.items():
        ET.SubElement(parent, "property", name=name, value=_text(text))


def _case(suite: ET.Element, report: Report, name: str, seconds: float) -> ET.Element:
    attributes = {
        "classname": _text(f"ddpcheck.{report.target.name}"),
        "name": _text(name),
        "time": f"{seconds:.3f}",
    }
    return ET.SubElement(suite, "testcase", attributes)


def _outcome(
    case: ET.Element, state: status.Status, message: str, details: str
) -> None:
    if tag := _TAGS.get(state):
        attributes = {"type": state, "message": _text(message)}
        ET.SubElement(case, tag, attributes).text = _text(details)


def _verdict(suite: ET.Element, report: Report) -> None:
    state = status.report_status(report)
    tag = _TAGS.get(state)
    if tag is None or suite.find(f"testcase/{tag}") is not None:
        return
    line = wording.verdict_line(report)
    reasons = [f"{what.what}: {what.why}" for what in report.not_compared]
    case = _case(suite, report, "verdict", report.seconds)
    _outcome(case, state, line, "\n".join([line, *reasons]))


def _message(report: Report, index: int) -> str:
    run = report.runs[index]
    state = status.run_status(report, index)
    if state == "not-checked":
        return status.run_why(report, index)
    if state == "accepted":
        return "; ".join(status.accepted_reasons(report, index))
    slugs = [f.slug for f in report.findings if index in f.runs]
    compared, mismatched = status.compared(run), status.mismatched(run)
    counts = f"{mismatched} of {compared} comparisons differ"
    if run.faults and not mismatched:
        counts = "failed on ranks"
    elif not compared:
        counts = _COUNTS.get(run.mode, "ranks differ")
    return f"{counts}: {', '.join(slugs) or 'cause unknown'}"


def _details(report: Report, index: int) -> str:
    lines = []
    worst = divergence.worst_of_run(report, index)
    if worst:
        lines.append(
            f"worst: {worst.name}, {wording.place(worst)}, {wording.size(worst)}"
        )
    for finding in report.findings:
        if index in finding.runs:
            lines += [f"{finding.slug}: {finding.summary}", *finding.facts]
            lines += wording.beside_facts(finding)
            lines += wording.advice_lines(finding.fix) if finding.fix else []
            lines.append(wording.proof(finding))
    for fault in report.runs[index].faults:
        lines += filter(None, (wording.fault_line(fault), fault.stack, fault.stderr))
    return "\n".join(lines)


def _text(text: str) -> str:
    """Returns `text` without what XML 1.0 cannot hold, not even escaped."""
    return _FORBIDDEN.sub("?", visible(text))
