"""How exactly the reference repeats itself: the tolerance, and what rounding does.

One process on a permuted batch, with a rescaled backward, is the same mathematics
with other rounding. What differs then differs for no other reason.
"""

from __future__ import annotations

from dataclasses import dataclass

from ddpcheck import assemble, tolerance
from ddpcheck.errors import cut
from ddpcheck.report import Run, Tolerance
from ddpcheck.run.spec import FINE_RTOL, RunSpec
from ddpcheck.session import RunOutcome, Session


@dataclass(frozen=True, slots=True, kw_only=True)
class Floor:
    """The tolerance of all runs, and an rtol of their own for some weights.

    Adam divides a gradient by its own size, so one that is zero but for rounding (a
    bias before a norm, the bias of attention's keys) moves its weight by a whole
    learning rate, in a direction that rounding decides.
    """

    limit: Tolerance
    weights: dict[str, float]  # rtol by name

    def warnings(self) -> list[str]:
        """Returns what the report says of the weights with an rtol of their own."""
        if not self.weights:
            return []
        largest = max(self.weights.values()) / tolerance.FLOOR_FACTOR
        return [
            f"the optimizer amplifies rounding in {cut(list(self.weights), 2)}: one "
            f"process on a permuted batch differs by {largest:.3g} there; judged by "
            f"{tolerance.FLOOR_FACTOR:g} times that (numeric/adam-amplification)"
        ]

    def apply(self, session: Session, outcomes: list[RunOutcome]) -> list[RunOutcome]:
        """Returns the outcomes, those judged too strictly run again."""
        if not self.weights:
            return outcomes
        # The recorder works at the spec's rtol; assemble scales it to the limit's.
        floors = tuple(
            (name, rtol * outcomes[0].spec.rtol / self.limit.rtol)
            for name, rtol in sorted(self.weights.items())
        )
        again = [
            i
            for i, outcome in enumerate(outcomes)
            if assemble.to_run(outcome, self.limit.rtol).verdict == "divergent"
        ]
        made = session.run([outcomes[i].spec.but(floors=floors) for i in again])
        replaced = dict(zip(again, made, strict=True))
        return [replaced.get(i, outcome) for i, outcome in enumerate(outcomes)]


def measure(
    session: Session, wanted: float | None, base: RunSpec, outcomes: list[RunOutcome]
) -> Floor:
    """Returns the floor; measures it only where it may matter.

    Args:
        session: of the target.
        wanted: the rtol that the user set, if any.
        base: the reference's spec.
        outcomes: of all runs, at the default tolerance.
    """
    default = tolerance.default(base.dtype)
    if wanted is not None:
        return Floor(limit=tolerance.chosen(wanted), weights={})
    runs = [assemble.to_run(outcome, default.rtol) for outcome in outcomes]
    if all(run.verdict != "divergent" for run in runs):
        return Floor(limit=default, weights={})
    # In every tensor, however little it differs.
    fine = base.but(mode="single", permute=True, rtol=FINE_RTOL)
    again = session.run([fine])[0]
    measured = assemble.to_run(again, again.spec.rtol)
    if measured.faults or measured.gradients.worst is None:
        return Floor(limit=default, weights={})
    gradients = measured.gradients.worst.excess * again.spec.rtol
    first = measured.gradients.excess_by_step[0] * again.spec.rtol
    if tolerance.is_rounding(base.dtype, first, gradients):
        limit = tolerance.from_floor(base.dtype, gradients, first)
        weights = _amplified(again, limit)
        if weights:
            return Floor(limit=limit, weights=weights)
    worst = _worst(measured) * again.spec.rtol
    return Floor(limit=tolerance.from_floor(base.dtype, worst, first), weights={})


def _worst(run: Run) -> float:
    return max(q.worst.excess for q in (run.gradients, run.weights) if q.worst)


def _amplified(again: RunOutcome, limit: Tolerance) -> dict[str, float]:
    """Returns an rtol for each trained weight whose rounding exceeds the tolerance.

    Weights that no gradient changes are left out: what writes to them is no optimizer.
    """
    untrained = set(again.reference.facts["untrained"])
    worst: dict[str, float] = {}
    for step in again.steps(0):
        weights = step.quantities.get("weights")
        for row in weights.tensors if weights else ():
            worst[row.name] = max(worst.get(row.name, 0.0), row.excess)
    found = {
        name: excess * again.spec.rtol * tolerance.FLOOR_FACTOR
        for name, excess in worst.items()
        if name not in untrained
    }
    return {name: rtol for name, rtol in found.items() if rtol > limit.rtol}
