"""Judges whether a cell has the result that theory predicts.

A cell that must be equal is compared with the single-process run. A cell that must
differ must equal the predicted training, so that it cannot pass with another error, and
the prediction must be far from single-process training; if the cell was also compared
with the single-process run, its verdict must be divergent.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ddpcheck.report.data import Difference, Quantity, Run
from ddpcheck.run.session import assemble
from ddpcheck.run.spec import RunOutcome
from ddpcheck.suite.cells import Cell
from ddpcheck.suite.zoo import matrix

# A relative difference. The smallest of a differing cell is 0.037 (unet-dice at world
# size 2, of all 860 such cells); equal cells in float64 stay below 2e-15.
FAR = 1e-3
_LEAST_FAR = 10.0  # times the tolerance, where that is above FAR

_QUANTITIES = ("gradients", "weights")


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What came of one cell.

    `why` is empty unless it failed; `excess` is the largest against what the cell must
    equal: the single-process run, or the prediction.
    """

    cell: Cell
    status: Literal["ok", "predicted", "FAILED"]
    why: str = ""
    excess: float = 0.0


def judge(
    cell: Cell,
    against_reference: RunOutcome | None,
    against_prediction: RunOutcome | None,
) -> Result:
    """Returns whether the cell came out as `cell.expected`.

    Args:
        cell: which one.
        against_reference: its run, compared with the reference; may be None if the
            cell must differ.
        against_prediction: its run, compared with the predicted training; None where
            the cell must be equal.
    """
    reference = _to_run(against_reference)
    if cell.expected == "equal":
        assert reference is not None
        why = _unequal(reference, "single-process training") or _objection(reference)
        return _result(cell, why, reference, "ok")
    prediction = _to_run(against_prediction)
    assert prediction is not None
    assert against_prediction is not None
    why = _near(against_prediction) or _unequal(prediction, "the prediction")
    if reference is not None:
        why = why or _undetected(reference)
    return _result(cell, why, prediction, "predicted")


def _to_run(outcome: RunOutcome | None) -> Run | None:
    if outcome is None:
        return None
    return assemble.to_run(outcome, outcome.spec.rtol)


def _result(
    cell: Cell, why: str, run: Run, status: Literal["ok", "predicted"]
) -> Result:
    worst = max((_excess(run, name) for name in _QUANTITIES), default=0.0)
    if not why:
        return Result(cell=cell, status=status, excess=worst)
    why = f"{cell}: expected {_EXPECTED[cell.expected]}, found {why}"
    return Result(cell=cell, status="FAILED", why=why, excess=worst)


_EXPECTED = {
    "equal": "single-process training",
    "differs": "the predicted training, which is far from single-process training",
}


def _unequal(run: Run, what: str) -> str:
    """Returns how the run differs from the expected training, "" if it is equal."""
    fault = _fault(run)
    if fault:
        return fault
    for name in _QUANTITIES:
        quantity: Quantity = getattr(run, name)
        if not quantity.compared:
            return f"nothing to compare: no {name}"
        if len(quantity.excess_by_step) != matrix.STEPS:
            steps = len(quantity.excess_by_step)
            return f"{name} of {steps} steps out of {matrix.STEPS}"
    for name in _QUANTITIES:
        quantity = getattr(run, name)
        if quantity.mismatched:
            count = f"{quantity.mismatched} of {quantity.compared} {name}"
            return f"{count} unequal to {what}, worst {_describe(quantity.worst)}"
    return "" if run.ranks_agree else "ranks that disagree"


def _objection(run: Run) -> str:
    """Returns why the tool's own verdict is not equivalent: mostly buffers."""
    if run.verdict == "equivalent":
        return ""
    if run.buffers.mismatched:
        count = f"{run.buffers.mismatched} of {run.buffers.compared} buffers"
        worst = _describe(run.buffers.worst)
        return f"{count} unequal to single-process training, worst {worst}"
    return f"the verdict {run.verdict} {run.why}".rstrip()


def _near(outcome: RunOutcome) -> str:
    """Returns how near the prediction is to the reference, "" if it is far."""
    excess: list[float] = outcome.reference.facts["excess"]
    if len(excess) == matrix.STEPS and min(excess) > far(outcome.spec.rtol):
        return ""
    sizes = ", ".join(f"{value:.3g}" for value in excess)
    return f"a prediction near single-process training: excess {sizes} in its steps"


def far(rtol: float) -> float:
    """Returns the excess above which two trainings count as different ones."""
    return max(_LEAST_FAR, FAR / rtol)


def _undetected(run: Run) -> str:
    """Returns why the tool's verdict is wrong, "" where it found the divergence."""
    fault = _fault(run)
    if fault:
        return fault
    if not run.ranks_agree:
        return "ranks that disagree"
    steps = run.gradients.excess_by_step
    if len(steps) != matrix.STEPS:
        return f"gradients of {len(steps)} steps out of {matrix.STEPS}"
    if min(steps) <= far(run.rtol) or run.verdict != "divergent":
        return (
            f"gradients within {min(steps):.3g} times the tolerance of "
            f"single-process training "
            f"(verdict {run.verdict}), worst {_describe(run.gradients.worst)}"
        )
    return ""


def _fault(run: Run) -> str:
    if not run.faults:
        return ""
    first = run.faults[0]
    return f"rank {first.rank} that {first.kind}: {first.summary}"


def _describe(row: Difference | None) -> str:
    if row is None:
        return "unknown"
    rank = "" if row.rank is None else f" on rank {row.rank}"
    why = f", {row.why}" if row.why else ""
    return f"{row.name} at step {row.step + 1}{rank} with excess {row.excess:.3g}{why}"


def _excess(run: Run, name: str) -> float:
    worst: Difference | None = getattr(run, name).worst
    return worst.excess if worst else 0.0
