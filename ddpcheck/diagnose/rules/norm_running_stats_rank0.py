"""Running statistics are each rank's own."""

from __future__ import annotations

from ddpcheck.diagnose.buffers import diverging_buffers
from ddpcheck.diagnose.case import Case, Proposal

SLUG = "norm/running-stats-rank0"
LINK = "update"


def detect(case: Case) -> Proposal | None:
    """Proposes it for batch norms whose buffers differ and outputs do not."""
    owner = diverging_buffers(case, batch_norm=True)
    if owner is None:
        return None
    return Proposal(
        slug=SLUG,
        link=LINK,
        summary="running statistics are updated from the rank's own shard; before each forward "
        "rank 0's overwrite the others: evaluation uses rank 0's data alone",
        facts=owner.facts,
        fix="update running statistics from the moments of all ranks, or merge them before "
        "evaluation and checkpoints",
        code="running_mean.lerp_(global_mean, momentum)",
        fixes=tuple(f"module.global:{name}" for name in owner.modules),
        module=owner.modules[0],
    )
