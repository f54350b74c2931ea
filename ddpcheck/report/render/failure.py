"""A report as the text of a failed test: a headline, the terminal report, stacks."""

from __future__ import annotations

from ddpcheck.errors.problem import visible
from ddpcheck.report.data import Fault, Report
from ddpcheck.report.render import status, terminal, wording
from ddpcheck.report.render.terminal import one_line

_MAX_LINES = 12  # of a stack: the innermost frames
_MAX_STACKS = 8
_NOTHING = "nothing was compared"


def to_text(report: Report) -> str:
    """Returns the terminal report and, where ranks failed, where they were.

    The first line is all that pytest's summary shows of a test.
    """
    text = terminal.to_text(report, color=False, width=80)
    text = f"{_headline(report)}\n\n{text}"
    stacks = [
        _stack(label, fault)
        for label, run in zip(wording.run_labels(report), report.runs, strict=True)
        for fault in run.faults
        if fault.stack
    ]
    return "\n".join([text, *stacks[:_MAX_STACKS]]) if stacks else text


def _headline(report: Report) -> str:
    """Returns verdict and causes: "divergent: loss/sum-reduction"."""
    causes = [f.slug for f in report.findings if f.accepted is None]
    causes += [
        status.run_why(report, index)
        for index in range(len(report.runs))
        if status.run_why(report, index) and not causes
    ]
    word = status.WORDS[status.report_status(report)]
    nothing = "cause unknown" if report.verdict == "divergent" else _NOTHING
    reasons = ", ".join(dict.fromkeys(causes)) or nothing
    return one_line(f"{word}: {reasons}")


def _stack(label: str, fault: Fault) -> str:
    lines = fault.stack.strip().splitlines()
    # faulthandler shows the innermost frame first, tracebacks show it last.
    is_reversed = "most recent call first" in fault.stack
    shown = lines[:_MAX_LINES] if is_reversed else lines[-_MAX_LINES:]
    head = f"{label}, {wording.fault_line(fault)}"
    return "\n".join(visible(line) for line in [head, *shown]) + "\n"
