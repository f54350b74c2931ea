"""Detects graph/static-graph-violated."""

from __future__ import annotations

from ddpcheck.diagnose.facts.case import Case, Proposal
from ddpcheck.run.intervention import Switch

SLUG = "graph/static-graph-violated"
LINK = "reduce"


def detect(case: Case) -> Proposal | None:
    """Proposes it if static_graph is set; a run without it confirms it."""
    if not case.reduce_is_broken or not any(f.get("static_graph") for f in case.ranks):
        return None
    return Proposal(
        summary="static_graph=True, but the graph differs between steps, or some "
        "parameters are unused",
        facts=("DDP was built with static_graph=True",),
        fix="remove static_graph, or add 0 * the unused output to the loss",
        code="DistributedDataParallel(model, find_unused_parameters=True)",
        fixes=(Switch.STATIC_GRAPH_OFF, Switch.FIND_UNUSED),
    )
