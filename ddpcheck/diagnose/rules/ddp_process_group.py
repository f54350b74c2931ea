"""Detects ddp/process-group."""

from __future__ import annotations

from ddpcheck.diagnose.facts import unlike
from ddpcheck.diagnose.facts.case import Case, Proposal

SLUG = "ddp/process-group"
LINK = "reduce"


def detect(case: Case) -> Proposal | None:
    """Proposes it if ranks differ and a wrapper reduces over a part of them."""
    found = unlike.reduced_over(case)
    if not found or case.run.ranks_agree:
        return None  # on equal gradients: other code reduces over the groups
    return Proposal(
        summary="the wrapper averages gradients over a process group that does not "
        "hold all data-parallel ranks, so each group trains by itself",
        facts=tuple(found),
        fix="give the wrapper the group of all data-parallel ranks, or no group: the "
        "default holds all ranks",
        code="model = DistributedDataParallel(model)  # the group of all ranks",
        code_rests_on="the wrapper's process group holds a part of the ranks",
        by_hand=True,
    )
