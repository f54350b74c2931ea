"""How exactly the reference can be repeated: the tolerance, and effects of rounding.

A single process on a permuted batch, with a rescaled backward, computes the same
mathematics with other rounding, so any difference is due to rounding. If the order of
samples matters (neighbours are pairs), the order of shards does not, or training on
ranks could not be right: an average over ranks has no order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ddpcheck.compare import tolerance
from ddpcheck.errors.problem import cut
from ddpcheck.report.data import Run, Tolerance
from ddpcheck.run.modes.single import SINGLE
from ddpcheck.run.session import assemble
from ddpcheck.run.session.session import Session
from ddpcheck.run.spec import FINE_RTOL, RunOutcome, RunSpec

if TYPE_CHECKING:
    from typing_extensions import Self

_SAMPLES = 1  # RunSpec.permute: every sample by itself
# Sums of another order round as often as there are samples; weights changed by one
# rounding, once. What differs by more than this many times is no noise.
_MOST_NOISE = 1000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Floor:
    """The tolerance of all runs, and an individual rtol for some weights and buffers.

    Adam divides a gradient by its own size, so one that is zero up to rounding (a bias
    before a norm, the bias of attention's keys) moves its weight by a whole learning
    rate, in a direction that rounding decides. Values computed from that weight move
    too: the running mean after a bias, the copy in a teacher.
    """

    limit: Tolerance
    weights: dict[str, float]  # rtol by name
    following: dict[str, float] = field(
        default_factory=dict
    )  # and what no optimizer writes

    def warnings(self) -> list[str]:
        """Returns the report's sentence about weights with an individual rtol."""
        if not self.weights:
            return []
        own = {**self.weights, **self.following}
        largest = max(own.values()) / tolerance.FLOOR_FACTOR
        names = cut(list(self.weights), 2)
        if self.following:
            names += f", and with it {cut(list(self.following), 2)}"
        return [
            f"the optimizer amplifies rounding in {names}: on a permuted batch "
            f"the single-process run differs by {largest:.3g} there; judged by "
            f"{tolerance.FLOOR_FACTOR:g} times that (numeric/adam-amplification)"
        ]

    def apply(self, session: Session, outcomes: list[RunOutcome]) -> list[RunOutcome]:
        """Returns the outcomes, those judged too strictly run again."""
        if not self.weights:
            return outcomes
        # The recorder works at the spec's rtol; assemble scales it to the limit's.
        floors = tuple(
            (name, rtol * outcomes[0].spec.rtol / self.limit.rtol)
            for name, rtol in sorted({**self.weights, **self.following}.items())
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
    made = _made(session, base, runs)
    if made is None:
        return Floor(limit=default, weights={})
    made = _with_float32(session, base, made)
    floor = made.floor()
    if floor.limit.rtol > default.rtol and not _is_noise(session, base, made):
        origin = tolerance.by_order(default, made.gradients)
        return Floor(limit=origin, weights={})
    if not floor.weights:
        return floor
    return replace(floor, following=_following(session, base, made, floor.limit))


def holds_in_other_orders(session: Session, base: RunSpec, world_size: int) -> bool:
    """Returns whether the reference on a batch in another order differs by rounding."""
    made = (_Repetition.make(session, base, n) for n in (_SAMPLES, world_size))
    found = [r for r in _until_rounding(made) if r is not None]
    return not found or found[-1].is_rounding


def where_changed(session: Session, outcome: RunOutcome, limit: Tolerance) -> Tolerance:
    """Returns the tolerance for a run with fixes that change the single-process run.

    Gradients that are all clipped to one number do not round; without clipping they do.
    Rounding can also not be separated from draws until these follow the samples. A run
    that differs by more than rounding has the common tolerance.
    """
    fixes = tuple(f for f in outcome.spec.fixes if f.in_reference)
    is_drawn = outcome.spec.noise == "sample" and bool(limit.noise_floor)
    run = assemble.to_run(outcome, limit.rtol)
    off = assemble.worst_excess(run) * limit.rtol
    is_set = limit.noise_floor is None and limit != tolerance.default(run.dtype)
    if (
        not (fixes or is_drawn)
        or is_set
        or not limit.rtol < off <= tolerance.LARGEST_FLOOR[run.dtype]
    ):
        return limit
    base = outcome.spec.but(mode=SINGLE.name, world_size=1, fixes=fixes)
    made = _made(session, base, [run])
    if made is None or not made.is_rounding:
        return limit
    found = _with_float32(session, base, made).floor().limit
    return found if found.rtol > limit.rtol else limit


def _following(
    session: Session, base: RunSpec, made: _Repetition, limit: Tolerance
) -> dict[str, float]:
    """Returns an rtol for each buffer and untrained weight that rounding moves, too.

    Where amplified weights move it, it moves with the samples in their own order as
    well: a queue of samples does not.
    """
    found = _worst(made.outcome, ("weights", "buffers"), limit)
    trained = _amplified(made.outcome, limit)
    epsilon = made.epsilon
    if found.keys() <= trained.keys() or not epsilon:
        return {}
    again = _Repetition.make(session, base, 0, jitter=epsilon)
    if again is None:
        return {}
    rounded = _worst(again.outcome, ("weights", "buffers"), limit)
    return {
        name: max(rtol, rounded[name])
        for name, rtol in found.items()
        if name in rounded and name not in trained
    }


def _with_float32(session: Session, base: RunSpec, made: _Repetition) -> _Repetition:
    """Returns the repetition with what float32 rounds inside a float64 run, if it does.

    A permuted batch has as many rows: its products round as they did, those of a shard
    do not. What float32 computes for no gradient changes none.
    """
    is_exact = made.epsilon < tolerance.FLOAT32_EPSILON
    if made.dtype != "float64" or is_exact or not made.is_rounding:
        return made
    permute = made.outcome.spec.permute
    again = _Repetition.make(session, base, permute, reround=True)
    return again if again is not None and again.is_rounding else made


def _is_noise(session: Session, base: RunSpec, made: _Repetition) -> bool:
    """Returns whether rounding alone can explain the effect of another sample order.

    A computation that amplifies rounding also does so with weights that are rounded
    once more; a term over neighbouring samples does not.
    """
    epsilon = made.epsilon
    again = _Repetition.make(session, base, 0, jitter=epsilon) if epsilon else None
    return again is None or made.gradients <= _MOST_NOISE * again.gradients


def _made(session: Session, base: RunSpec, runs: list[Run]) -> _Repetition | None:
    """Returns the repetition that differs by rounding, else the first; None: failed."""
    sizes = [r.world_size for r in runs if r.world_size > 1]
    orders = [_SAMPLES, *([min(sizes)] if sizes else [])]
    repetitions = (_Repetition.make(session, base, n) for n in orders)
    found = [r for r in _until_rounding(repetitions) if r is not None]
    if not found:
        return None
    return found[-1] if found[-1].is_rounding else found[0]


def _until_rounding(
    repetitions: Iterable[_Repetition | None],
) -> Iterator[_Repetition | None]:
    """Yields them up to the first that differs by rounding alone."""
    for repetition in repetitions:
        yield repetition
        if repetition is not None and repetition.is_rounding:
            return


@dataclass(frozen=True, slots=True, kw_only=True)
class _Repetition:
    """A repetition of the single-process run, with the batch in another order."""

    outcome: RunOutcome
    run: Run
    first: float  # relative difference of the first step's gradients
    gradients: float  # of all steps'

    @classmethod
    def make(
        cls,
        session: Session,
        base: RunSpec,
        permute: int,
        *,
        jitter: float = 0.0,
        reround: bool = False,
    ) -> Self | None:
        """Returns the repetition, None where it failed or nothing was compared."""
        # In every tensor, however little it differs.
        again = base.but(
            mode=SINGLE.name, permute=permute, jitter=jitter, reround=reround
        )
        fine = again.but(rtol=FINE_RTOL)
        outcome = session.run([fine])[0]
        run = assemble.to_run(outcome, outcome.spec.rtol)
        if run.faults or run.gradients.worst is None:
            return None
        return cls(
            outcome=outcome,
            run=run,
            first=run.gradients.excess_by_step[0] * outcome.spec.rtol,
            gradients=run.gradients.worst.excess * outcome.spec.rtol,
        )

    @property
    def epsilon(self) -> float:
        """Of the lowest precision that any operation computed in, 0 if unknown."""
        found: float = self.outcome.facts().get("epsilon", 0.0)
        return found

    @property
    def dtype(self) -> str:
        """The precision: the run's dtype, or a lower one inside that has an effect."""
        own = self.outcome.spec.dtype
        if tolerance.is_rounding(own, self.first, self.gradients):
            return own
        return tolerance.lower_precision(self.epsilon) or own

    @property
    def is_rounding(self) -> bool:
        """Whether the gradients differ by no more than rounding can."""
        return tolerance.is_rounding(self.dtype, self.first, self.gradients)

    def floor(self) -> Floor:
        """Returns the tolerance that follows."""
        spec = self.outcome.spec
        what = "batch" if spec.permute == _SAMPLES else "order of shards"
        if spec.reround:
            what += " with float32 rounded otherwise"
        if self.is_rounding:
            limit = tolerance.from_floor(
                self.dtype, self.gradients, self.first, permuted=what
            )
            if self.dtype != spec.dtype:
                limit = tolerance.inside(limit, self.dtype)
            if weights := _amplified(self.outcome, limit):
                return Floor(limit=limit, weights=weights)
        judged = (self.run.gradients, self.run.weights)
        worst = max(q.worst.excess for q in judged if q.worst) * spec.rtol
        limit = tolerance.from_floor(self.dtype, worst, self.first, permuted=what)
        if self.dtype != spec.dtype and self.is_rounding:
            limit = tolerance.inside(limit, self.dtype)
        return Floor(limit=limit, weights={})


def _amplified(again: RunOutcome, limit: Tolerance) -> dict[str, float]:
    """Returns an rtol for each trained weight whose rounding exceeds the tolerance.

    Untrained weights are left out, as no optimizer writes to them.
    """
    untrained = set(again.reference.facts["untrained"])
    found = _worst(again, ("weights",), limit)
    return {name: rtol for name, rtol in found.items() if name not in untrained}


def _worst(
    again: RunOutcome, quantities: tuple[str, ...], limit: Tolerance
) -> dict[str, float]:
    """Returns an rtol for each tensor whose rounding exceeds the tolerance."""
    worst: dict[str, float] = {}
    for step in again.steps(0):
        for quantity in (step.quantities.get(name) for name in quantities):
            for row in quantity.tensors if quantity else ():
                worst[row.name] = max(worst.get(row.name, 0.0), row.excess)
    found = {
        name: excess * again.spec.rtol * tolerance.FLOOR_FACTOR
        for name, excess in worst.items()
    }
    return {name: rtol for name, rtol in found.items() if rtol > limit.rtol}
