"""Detects sync/no-sync-off-by-one."""

from __future__ import annotations

from ddpcheck.diagnose.facts.case import Case, Proposal
from ddpcheck.diagnose.facts.events import (
    accumulates,
    ends_unsynchronised,
    has_no_reduction,
    is_torn,
)

SLUG = "sync/no-sync-off-by-one"
LINK = "reduce"


def detect(case: Case) -> Proposal | None:
    """Proposes it if the last backward of a step is inside no_sync."""
    events = [f.get("events", "") for f in case.ranks]
    if not case.reduce_is_broken or not events:
        return None
    if is_torn(events[0]) or not ends_unsynchronised(events[0]):
        return None
    if has_no_reduction(events[0]) or not accumulates(events[0]):
        return None
    return Proposal(
        summary="the micro-batch that DDP reduces is not the last one: gradients "
        "of later micro-batches stay local",
        facts=(
            "order of DDP forwards (F), backwards (B), no_sync ( [ ] ) and optimizer steps "
            f"(S): {events[0][:32]}",
        ),
        fix="synchronise the last micro-batch of a step",
        code="synced = (i + 1) % k == 0",
        code_rests_on="the last backward of a step is within no_sync, and another is not",
        by_hand=True,
    )
