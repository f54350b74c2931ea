"""Detects graph/reentrant-checkpoint."""

from __future__ import annotations

from ddpcheck.diagnose.facts.case import Case, Proposal
from ddpcheck.diagnose.facts.text import times
from ddpcheck.diagnose.proposal import replaced
from ddpcheck.run.intervention import Switch

SLUG = "graph/reentrant-checkpoint"
LINK = "reduce"


def detect(case: Case) -> Proposal | None:
    """Proposes it if a step has nested backwards."""
    if not case.reduce_is_broken or not any(
        f.get("nested_backwards") for f in case.ranks
    ):
        return None
    count = max(f.get("nested_backwards", 0) for f in case.ranks)
    found = Proposal(
        summary="reentrant checkpointing runs a backward inside the backward, and DDP's "
        "hooks fire early or twice",
        facts=(f"backward was called {times(count)} from inside another backward",),
        fix="use_reentrant=False",
        code="checkpoint(layer, x, use_reentrant=False)",
        fixes=(Switch.NONREENTRANT_CHECKPOINT,),
    )
    # A custom backward of the model, as of reversible layers, is no checkpoint.
    static = replaced(
        found,
        summary="a backward runs inside the backward, and DDP's hooks fire early or "
        "twice",
        fix=(
            "set static_graph=True, if every step uses the same parameters equally "
            "often"
        ),
        code="DistributedDataParallel(model, static_graph=True)",
        fixes=(Switch.STATIC_GRAPH_ON,),
    )
    return replaced(found, fallback=static)
