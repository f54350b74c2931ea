"""The smallest batch and the fewest steps that still show a divergence."""

from __future__ import annotations

from ddpcheck import assemble
from ddpcheck.errors import UsageError
from ddpcheck.report import Run, Tolerance
from ddpcheck.run.spec import RunSpec
from ddpcheck.session import CannotCheckError, RunOutcome, Session


def smallest(
    session: Session, outcomes: list[RunOutcome], runs: list[Run], limit: Tolerance
) -> RunSpec | None:
    """Returns the spec of the smallest divergent DDP run, None where none diverges.

    The smallest world size of the matrix; then as many steps as it takes, and the
    first samples of the batch, one per rank and twice as many each time. A hang is not
    repeated.
    """
    divergent = [
        (run.world_size, i)
        for i, run in enumerate(runs)
        if run.mode == "ddp" and run.verdict == "divergent"
    ]
    if not divergent:
        return None
    index = min(divergent)[1]
    run, spec = runs[index], outcomes[index].spec
    if run.faults:
        return spec
    spec = spec.but(steps=_steps(run))
    rows = run.world_size
    while rows < sum(run.shard_sizes):
        candidate = spec.but(rows=rows)
        if _diverges(session, candidate, limit):
            return candidate
        rows *= 2
    return spec


def _diverges(session: Session, spec: RunSpec, limit: Tolerance) -> bool:
    try:
        made = assemble.to_run(session.run([spec])[0], limit.rtol)
    except (UsageError, CannotCheckError):
        return False  # one process cannot train on so few samples
    return made.verdict == "divergent" and not made.faults


def _steps(run: Run) -> int:
    """Returns the number of steps up to the first that differs."""
    rows = [
        t
        for q in (run.gradients, run.weights, run.buffers)
        for t in q.tensors
        if t.excess > 1
    ]
    return min((t.step for t in rows), default=2) + 1
