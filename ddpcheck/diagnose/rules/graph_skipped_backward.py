"""A rank skips a backward."""

from __future__ import annotations

from ddpcheck.diagnose.case import Case, Proposal
from ddpcheck.diagnose.faults import backwards_of_ranks
from ddpcheck.diagnose.text import listed

SLUG = "graph/skipped-backward"
LINK = "reduce"


def detect(case: Case) -> Proposal | None:
    """Proposes it where ranks began different numbers of backwards."""
    calls = backwards_of_ranks(case)
    if not calls or len(set(calls)) == 1:
        return None
    return Proposal(
        slug=SLUG,
        link=LINK,
        summary="a rank skips a backward that the others do: they wait for its gradients, or "
        "meet those of its next step",
        facts=(
            f"backwards begun until then, per rank: {listed(calls)}",
            *[f"rank {f.rank}: {f.summary}" for f in case.run.faults[:3]],
        ),
        fix="take the decision on all ranks together, or multiply the loss by 0",
        code="dist.all_reduce(skip, dist.ReduceOp.MAX)  # then decide on all ranks alike",
    )
