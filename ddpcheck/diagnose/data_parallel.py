"""Which findings explain nn.DataParallel's divergent runs too, and which do not.

DataParallel shards the forward as DDP does and computes the loss on all outputs, so
what breaks in the forward link breaks both, and the loss only where it is computed
inside forward.
"""

from __future__ import annotations

import dataclasses

from ddpcheck import assemble
from ddpcheck.diagnose.text import number
from ddpcheck.report import Finding, Fix, Run, Tolerance
from ddpcheck.session import RunOutcome, Session


def explain(
    session: Session,
    outcomes: list[RunOutcome],
    runs: list[Run],
    rest: list[int],
    findings: list[Finding],
    limit: Tolerance,
) -> list[Finding]:
    """Returns the findings with DataParallel's runs added, or one of their own."""
    shared = [
        f for f in findings if f.link in ("forward", "loss", "backward", "update")
    ]
    if shared:
        return [_with(f, rest) if f in shared else f for f in findings]
    return [*findings, _own(session, outcomes, runs, rest, limit)]


def _with(finding: Finding, rest: list[int]) -> Finding:
    return dataclasses.replace(finding, runs=tuple(sorted({*finding.runs, *rest})))


def _own(
    session: Session,
    outcomes: list[RunOutcome],
    runs: list[Run],
    rest: list[int],
    limit: Tolerance,
) -> Finding:
    """Returns the finding for a divergence that DataParallel alone has."""
    del session, outcomes, limit
    run = runs[rest[0]]
    same = [r for r in runs if r.mode == "ddp" and r.world_size == run.world_size]
    ddp_is_fine = bool(same) and all(r.verdict == "equivalent" for r in same)
    lost = run.buffers.mismatched > 0
    worst = run.buffers.worst if lost else run.gradients.worst
    facts = []
    if worst is not None:
        facts.append(
            f"{worst.name} differs by {number(worst.rel_diff)} relative after step "
            f"{worst.step + 1}"
        )
    if ddp_is_fine:
        facts.append(f"DDP at world size {run.world_size} equals one process")
    fix = Fix(
        text="use DistributedDataParallel",
        code="model = DistributedDataParallel(model)",
        verified=ddp_is_fine or None,
        excess_before=assemble.worst_excess(run),
        excess_after=assemble.worst_excess(same[0]) if ddp_is_fine else None,
    )
    first = run.gradients.excess_by_step[:1]
    right_at_first = not first or first[0] <= 1
    if lost and right_at_first:
        return Finding(
            slug="dp/replica-state-lost",
            link="update",
            runs=tuple(rest),
            summary="DataParallel throws away what replicas write: buffers keep the "
            "first replica's data alone",
            facts=tuple(facts),
            fix=fix,
        )
    return Finding(
        slug="unknown",
        link="forward",
        runs=tuple(rest),
        summary="the cause is unknown; under DataParallel alone the forward differs",
        facts=tuple(facts),
        fix=fix if ddp_is_fine else None,
    )
