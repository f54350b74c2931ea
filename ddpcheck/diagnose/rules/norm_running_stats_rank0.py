"""Detects norm/running-stats-rank0."""

from __future__ import annotations

from ddpcheck.diagnose.facts.buffers import diverging_buffers
from ddpcheck.diagnose.facts.case import Case, Proposal
from ddpcheck.run.intervention import GlobalModule, Substitute

SLUG = "norm/running-stats-rank0"
LINK = "update"


def detect(case: Case) -> Proposal | None:
    """Proposes it for batch norms whose buffers differ and outputs do not."""
    owner = diverging_buffers(case, batch_norm=True)
    if owner is None:
        return None
    return Proposal(
        summary="running statistics are updated from the local shard"
        + (
            "; before each forward rank 0's statistics overwrite the others, so "
            "evaluation uses only rank 0's data"
            if owner.are_broadcast
            else (
                ", and DDP does not broadcast them: every rank evaluates with "
                "statistics of its own data"
            )
        ),
        facts=owner.facts,
        fix="update running statistics from the moments of all ranks, or merge them before "
        "evaluation and checkpoints",
        fixes=tuple(GlobalModule(name=name) for name in owner.modules)
        if owner.written_in_forward
        else (Substitute(boundary="state", names=tuple(owner.modules)),),
        module=owner.modules[0],
    )
