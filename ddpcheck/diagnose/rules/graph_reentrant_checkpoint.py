"""Reentrant checkpoints fire DDP's hooks inside a nested backward."""

from __future__ import annotations

from ddpcheck.diagnose.case import Case, Proposal

SLUG = "graph/reentrant-checkpoint"
LINK = "reduce"


def detect(case: Case) -> Proposal | None:
    """Proposes it where a step has nested backwards."""
    if not case.reduce_is_broken or not any(case.rank_facts("nested_backwards", 0)):
        return None
    count = max(case.rank_facts("nested_backwards", 0))
    return Proposal(
        slug=SLUG,
        link=LINK,
        summary="reentrant checkpointing runs a backward inside the backward, and DDP's "
        "hooks fire early or twice",
        facts=(f"backward was called {count} times from inside another backward",),
        fix="use_reentrant=False",
        code="checkpoint(layer, x, use_reentrant=False)",
        fixes=("checkpoint.nonreentrant",),
    )
