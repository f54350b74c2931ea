"""The smallest batch and model and the fewest steps that still show a divergence."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ddpcheck.diagnose.facts.case import Case
from ddpcheck.diagnose.reproduce import Smallest
from ddpcheck.errors.problem import UsageError
from ddpcheck.report.data import Run, Tolerance
from ddpcheck.run.modes.registry import mode_of
from ddpcheck.run.session import assemble
from ddpcheck.run.session.session import CannotCheckError, Session
from ddpcheck.run.spec import RunOutcome, RunSpec

Mended = Callable[[RunSpec], RunSpec]  # the spec with the fixes in force

# Runs that leave modules out: a diagnosis may not take much longer for its script.
_MOST_TRIALS = 6
# A rank that does not hang needs less: a start, and a multiple of the single process.
_LEAST_DEADLINE_S = 5.0
_SLOWDOWN = 20.0


def removable(case: Case | None) -> list[str]:
    """Returns the modules that nn.Identity may stand in for, outer ones first."""
    if case is None:
        return []
    kept: dict[str, bool] = {}
    for call in case.modules():
        kept[call.name] = kept.get(call.name, True) and call.keeps_shape
    names = [name for name, keeps in kept.items() if name and keeps]
    return sorted(names, key=lambda name: name.count("."))


def divergent(
    session: Session, outcomes: list[RunOutcome], runs: list[Run]
) -> Smallest | None:
    """Returns the divergent DDP run of the smallest world size, None: none diverges."""
    found = [
        (run.world_size, i)
        for i, run in enumerate(runs)
        if mode_of(run.mode).explained_by == "ranks" and run.verdict == "divergent"
    ]
    if not found:
        return None
    return _outcome(session, outcomes[min(found)[1]], runs[min(found)[1]])


def smallest(
    session: Session,
    known: Smallest,
    limit: Tolerance,
    names: Sequence[str] = (),
    mended: Mended | None = None,
) -> Smallest:
    """Returns the smallest run that diverges as this one does.

    As many steps as it takes; the first samples of the batch, one per rank and twice as
    many each time; and the model without those of the modules `names` that it diverges
    without. A hang is not repeated. Nothing is tried past the session's deadline.

    Few samples may have a fault of their own: a rank with one makes one micro-batch of
    it, whatever their number. So a run of fewer has to be equivalent with the fixes of
    the causes found, as `mended` puts them into a spec; None where none is proven.
    """
    if known.run.faults:
        return known
    trial = _Trial(session, limit, mended)
    return _with_fewer_modules(trial, _with_fewer_samples(trial, known), list(names))


def _with_fewer_samples(trial: _Trial, known: Smallest) -> Smallest:
    spec = known.spec.but(steps=_steps(known.run))
    rows = known.run.world_size
    while rows < sum(known.run.shard_sizes):
        smaller = spec.but(rows=rows)
        found = trial.diverging(smaller)
        if found and trial.is_mended(smaller):
            return found
        rows *= 2
    if spec == known.spec:
        return known
    return trial.diverging(spec) or replace(known, spec=spec)


def _with_fewer_modules(trial: _Trial, known: Smallest, names: list[str]) -> Smallest:
    """Leaves out as many modules as a few runs find: all, else halves, and so on.

    The run must still have the same kind of difference, e.g. in gradients.
    """
    groups, trials = [names], 0
    while groups and trials < _MOST_TRIALS:
        group = [n for n in groups.pop(0) if not _is_inside(n, known.spec.without)]
        if not group:
            continue
        outer = tuple(n for n in group if not _is_inside(n, group))
        trials += 1
        spec = known.spec.but(without=known.spec.without + outer)
        found = trial.diverging(spec)
        if found and _differing(found.run) == _differing(known.run):
            known = found
        elif len(group) > 1:
            half = len(group) // 2
            groups += [group[:half], group[half:]]
    return known


def _is_inside(name: str, others: Sequence[str]) -> bool:
    return any(name.startswith(f"{other}.") for other in others)


def _differing(run: Run) -> list[bool]:
    return [bool(q.mismatched) for q in (run.outputs, run.gradients, run.buffers)]


@dataclass(frozen=True, slots=True)
class _Trial:
    """Smaller runs, and whether they still show the causes found."""

    session: Session
    limit: Tolerance
    mended: Mended | None

    def diverging(self, spec: RunSpec) -> Smallest | None:
        """Returns the run if it diverges, and not by a fault."""
        if self.session.is_late():
            return None
        try:
            outcome = self.session.run([spec])[0]
        except (UsageError, CannotCheckError):
            return None  # one process cannot train on so few, or without a module
        run = assemble.to_run(outcome, self.limit.rtol)
        if run.verdict != "divergent" or run.faults:
            return None
        if not math.isfinite(assemble.worst_excess(run)):
            return None  # the deviation of a single row is no number
        return _outcome(self.session, outcome, run)

    def is_mended(self, spec: RunSpec) -> bool:
        """Returns whether the fixes, if any are proven, make the run equivalent."""
        if self.mended is None:
            return True
        if self.session.is_late():
            return False
        try:
            outcome = self.session.run([self.mended(spec)])[0]
        except (UsageError, CannotCheckError):
            return False
        run = assemble.to_run(outcome, self.limit.rtol)
        return run.verdict == "equivalent"


def _outcome(session: Session, outcome: RunOutcome, run: Run) -> Smallest:
    facts = outcome.reference.facts
    return Smallest(
        spec=outcome.spec,
        run=run,
        unused=bool(facts["idle"]),
        deadline_s=math.ceil(_deadline_s(session, outcome, run)),
        collates=facts.get("collates", False),
    )


def _deadline_s(session: Session, outcome: RunOutcome, run: Run) -> float:
    """Returns the time after which ranks of the script hang: soon, if they do hang."""
    longest_s = session.pool.timeout_s
    if {fault.kind for fault in run.faults} != {"hung"}:
        return longest_s
    return min(longest_s, _LEAST_DEADLINE_S + _SLOWDOWN * outcome.reference.seconds)


def _steps(run: Run) -> int:
    """Returns the number of steps up to the first that differs."""
    rows = [
        t
        for q in (run.gradients, run.weights, run.buffers)
        for t in q.tensors
        if t.excess > 1
    ]
    return min((t.step for t in rows), default=2) + 1
