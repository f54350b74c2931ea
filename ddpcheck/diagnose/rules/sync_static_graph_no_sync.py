"""Detects sync/static-graph-no-sync."""

from __future__ import annotations

from ddpcheck.diagnose.facts.case import Case, Proposal
from ddpcheck.diagnose.proposal import replaced
from ddpcheck.run.intervention import Switch

SLUG = "sync/static-graph-no-sync"
LINK = "reduce"


def detect(case: Case) -> Proposal | None:
    """Proposes it if a static graph is trained with no_sync and fails."""
    if not case.reduce_is_broken or not any(f.get("static_graph") for f in case.ranks):
        return None
    events = [f.get("events", "") for f in case.ranks]
    if not events or "[" not in events[0]:
        return None
    facts = [
        f"order of forwards (F), backwards (B) and no_sync ( [ ] ): {events[0][:24]}"
    ]
    if case.fault_text:
        facts.append(f"rank 0 raises: {case.fault_text[:100]}")
    found = Proposal(
        summary="static_graph=True with no_sync: DDP treats the unsynchronised "
        "backward as its first iteration",
        facts=tuple(facts),
        fix="set static_graph=False, or accumulate without no_sync",
        code="DistributedDataParallel(model, static_graph=False)",
        fixes=(Switch.STATIC_GRAPH_OFF,),
    )
    if not any(f.get("nested_backwards") for f in case.ranks):
        return found
    # Without the static graph DDP fails for recomputed layers.
    return replaced(
        found,
        fix="accumulate without no_sync",
        code="criterion(model(x), y).backward()  # not within model.no_sync()",
        fixes=(Switch.ALWAYS_SYNC,),
    )
