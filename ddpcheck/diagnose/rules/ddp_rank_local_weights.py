"""Weights differ between ranks before the first step."""

from __future__ import annotations

from ddpcheck.diagnose.case import Case, Proposal
from ddpcheck.diagnose.text import names

SLUG = "ddp/rank-local-weights"
LINK = "reduce"


def detect(case: Case) -> Proposal | None:
    """Proposes a broadcast where ranks start from other weights than rank 0."""
    per_rank = case.rank_facts("start_differs", [])
    wrong = [(rank, found) for rank, found in enumerate(per_rank) if found]
    if not wrong or not any(case.rank_facts("start_differs", [])[1:]):
        return None
    rank, found = wrong[-1]
    return Proposal(
        slug=SLUG,
        link=LINK,
        summary="the ranks start from different weights: something wrote them after "
        "DDP had sent rank 0's to all",
        facts=(
            f"before the first step rank {rank} differs from one process in "
            f"{len(found)} parameters: {names(found)}",
        ),
        fix="load or initialise before wrapping, or broadcast afterwards",
        code="for p in model.parameters():\n    dist.broadcast(p.data, 0)",
        fixes=("ddp.broadcast",),
    )
