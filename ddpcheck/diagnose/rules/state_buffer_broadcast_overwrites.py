"""A buffer gathers statistics of the own shard."""

from __future__ import annotations

from ddpcheck.diagnose.buffers import diverging_buffers
from ddpcheck.diagnose.case import Case, Proposal

SLUG = "state/buffer-broadcast-overwrites"
LINK = "update"


def detect(case: Case) -> Proposal | None:
    """Proposes it for other modules whose buffers differ after a step."""
    owner = diverging_buffers(case, batch_norm=False)
    if owner is None:
        return None
    return Proposal(
        slug=SLUG,
        link=LINK,
        summary="a buffer is updated in forward from the rank's own shard, and before each forward "
        "rank 0's value overwrites the others: only rank 0's data counts",
        facts=owner.facts,
        fix="all-reduce the increment in forward",
        code="dist.all_reduce(increment)\nself.buffer += increment",
        fixes=tuple(f"module.global:{name}" for name in owner.modules),
        module=owner.modules[0],
    )
