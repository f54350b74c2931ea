"""What was not compared, and why: listed items, and kinds of tensors as a whole."""

from __future__ import annotations

from ddpcheck.report.data import Report, Run
from ddpcheck.report.render import status

_BY_STEP = "the target's train_step does not return it"
_NO_ROWS = "the model returns nothing that has a row for each sample"
_NO_BUFFERS = "the model has no buffers"


def items(report: Report) -> list[tuple[str, str]]:
    """Returns what was not compared and why: kinds as a whole, then what is listed.

    Items with the same reason are joined.
    """
    kinds = [(status.KIND_WORDS[kind], why) for kind, why in kinds_of(report).items()]
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
    missing = [k for k in status.KINDS if not any(_count(run, k) for run in whole)]
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
    what = f"{status.KIND_WORDS[kind]} of {run.mode} at world size {run.world_size}"
    listed = {item.what: item.why for item in report.not_compared}
    known = (
        status.run_why(report, index),
        kinds_of(report).get(kind),
        listed.get(what),
        "ranks failed before it" if run.faults else "",
    )
    return next((why for why in known if why), "")


def _is_whole(run: Run) -> bool:
    """Returns whether a run was compared to its end."""
    return bool(run.gradients.compared or run.weights.compared) and not run.faults


def _count(run: Run, kind: str) -> int:
    return status.quantity(run, kind).compared
