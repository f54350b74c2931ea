"""The status of a run, a quantity or a report in a word; what was not compared."""

from __future__ import annotations

from typing import Literal

from ddpcheck.report.data import JUDGED, Quantity, Report, Run
from ddpcheck.report.render import numbers

Status = Literal["equivalent", "divergent", "accepted", "not-checked"]
QuantityState = Literal["pass", "fail", "none"]

WORDS: dict[Status, str] = {
    "equivalent": "equivalent",
    "divergent": "divergent",
    "accepted": "accepted",
    "not-checked": "not checked",
}
SYMBOLS: dict[Status, str] = {
    "equivalent": "=",
    "divergent": "x",
    "accepted": "~",
    "not-checked": "?",
}
# In the order in which one training step computes them; buffers move in the forward.
KINDS = ("outputs", "buffers", "losses", "gradients", "weights")
# What decides comes first: on a narrow screen the rest is cut off.
_SHOWN = (*JUDGED, "losses", "outputs")
KIND_WORDS = {
    "outputs": "outputs",
    "losses": "loss",
    "gradients": "gradients",
    "weights": "weights",
    "buffers": "buffers",
}


def quantity(run: Run, kind: str) -> Quantity:
    """Returns one kind of tensors of a run; `kind` is one of `KINDS`."""
    found: Quantity = getattr(run, kind)
    return found


def compared(run: Run) -> int:
    """Returns how many tensor comparisons the run's verdict rests on."""
    return sum(quantity(run, kind).compared for kind in KINDS)


def mismatched(run: Run) -> int:
    """Returns how many of the run's comparisons were above tolerance."""
    return sum(quantity(run, kind).mismatched for kind in KINDS)


def run_status(report: Report, index: int) -> Status:
    """Returns the status of a run; a run that compared nothing is never equivalent."""
    run = report.runs[index]
    if run.verdict == "equivalent":
        return "equivalent" if compared(run) else "not-checked"
    if run.verdict == "divergent" and accepted_reasons(report, index):
        return "accepted"
    return run.verdict


def accepted_reasons(report: Report, index: int) -> tuple[str, ...]:
    """Returns the user's reasons, empty unless every finding of the run is accepted."""
    found = [finding.accepted for finding in report.findings if index in finding.runs]
    return tuple(r for r in found if r is not None) if None not in found else ()


def report_status(report: Report) -> Status:
    """Returns the report's verdict; nothing compared is never equivalent.

    A report that passes with differing runs is "accepted".
    """
    if report.verdict != "equivalent":
        return report.verdict
    if not any(map(compared, report.runs)):
        return "not-checked"
    return "accepted" if differing(report) else "equivalent"


def passes(report: Report) -> bool:
    """Returns whether the check passes: runs equal, or differ by accepted causes."""
    return report_status(report) in ("equivalent", "accepted")


def differing(report: Report) -> int:
    """Returns how many runs differ, accepted or not."""
    return sum(run.verdict == "divergent" for run in report.runs)


def run_why(report: Report, index: int) -> str:
    """Returns why a run was not checked, "" for a run that was."""
    if run_status(report, index) != "not-checked":
        return ""
    return report.runs[index].why or "nothing was compared"


def quantity_state(found: Quantity) -> QuantityState:
    """Returns "none" where nothing was compared, which is no pass."""
    if found.mismatched:
        return "fail"
    return "pass" if found.compared else "none"


def quantity_text(found: Quantity) -> str:
    """Returns the worst excess as text, "-" where nothing was compared."""
    state = quantity_state(found)
    if state == "none":
        return "-"
    if found.worst is None:
        return "<=1" if state == "pass" else ">1"
    return numbers.excess(found.worst.excess)


def shown_kinds(report: Report) -> tuple[str, ...]:
    """Returns the kinds of the matrix: those that are judged, others with a number."""
    return tuple(
        kind
        for kind in _SHOWN
        if kind in JUDGED or any(quantity(run, kind).compared for run in report.runs)
    )


_BY_STEP = "the target's train_step does not return it"
_NO_ROWS = "the model returns nothing that has a row for each sample"
_NO_BUFFERS = "the model has no buffers"


def not_compared(report: Report) -> list[tuple[str, str]]:
    """Returns what was not compared and why: kinds as a whole, then what is listed.

    Items with the same reason are joined.
    """
    kinds = [(KIND_WORDS[kind], why) for kind, why in kinds_of(report).items()]
    found: dict[str, list[str]] = {}
    for what, why in (*kinds, *((i.what, i.why) for i in report.not_compared)):
        found.setdefault(why, []).append(what)
    return [(", ".join(whats), why) for why, whats in found.items()]


def kinds_of(report: Report) -> dict[str, str]:
    """Returns the kinds of tensors that no run compares, and why.

    Only what may be missing from a target that is right: no run without gradients or
    weights passes in silence.
    """
    whole = [run for run in report.runs if _is_whole(run)]
    if not whole:
        return {}
    missing = [k for k in KINDS if not any(_compared(run, k) for run in whole)]
    reasons = {
        "losses": _BY_STEP,
        "outputs": _BY_STEP if "losses" in missing else _NO_ROWS,
        "buffers": _NO_BUFFERS,
    }
    # Buffers that are listed one by one have reasons of their own.
    if any(item.what.startswith("buffer") for item in report.not_compared):
        del reasons["buffers"]
    return {kind: reasons[kind] for kind in missing if kind in reasons}


def why_none(report: Report, index: int, kind: str) -> str:
    """Returns why a run has no number of this kind, "" if it is not known."""
    run = report.runs[index]
    what = f"{KIND_WORDS[kind]} of {run.mode} at world size {run.world_size}"
    listed = {item.what: item.why for item in report.not_compared}
    known = (
        run_why(report, index),
        kinds_of(report).get(kind),
        listed.get(what),
        "ranks failed before it" if run.faults else "",
    )
    return next((why for why in known if why), "")


def _is_whole(run: Run) -> bool:
    """Returns whether a run was compared to its end."""
    return bool(run.gradients.compared or run.weights.compared) and not run.faults


def _compared(run: Run, kind: str) -> int:
    return quantity(run, kind).compared
