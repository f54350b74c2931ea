"""no_sync with static_graph breaks DDP's count of the first iteration."""

from __future__ import annotations

from ddpcheck.diagnose.case import Case, Proposal

SLUG = "sync/static-graph-no-sync"
LINK = "reduce"


def detect(case: Case) -> Proposal | None:
    """Proposes it where a static graph is trained with no_sync and fails."""
    if not case.reduce_is_broken or not any(case.rank_facts("static_graph", False)):
        return None
    events = case.rank_facts("events", "")
    if not events or "[" not in events[0]:
        return None
    facts = [
        f"order of forwards (F), backwards (B) and no_sync ( [ ] ): {events[0][:24]}"
    ]
    if case.fault_text:
        facts.append(f"rank 0 raises: {case.fault_text[:100]}")
    return Proposal(
        slug=SLUG,
        link=LINK,
        summary="static_graph=True with no_sync: DDP takes the unsynchronised backward "
        "for its first iteration",
        facts=tuple(facts),
        fix="static_graph=False, or accumulate without no_sync",
        code="DistributedDataParallel(model, static_graph=False)",
        fixes=("ddp.static_off",),
    )
