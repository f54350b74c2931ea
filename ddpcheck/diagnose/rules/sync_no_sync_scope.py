"""no_sync covers the forward or the backward, not both."""

from __future__ import annotations

from ddpcheck.diagnose.case import Case, Proposal
from ddpcheck.diagnose.events import is_torn

SLUG = "sync/no-sync-scope"
LINK = "reduce"


def detect(case: Case) -> Proposal | None:
    """Proposes it where a forward and its backward lie on two sides of no_sync."""
    events = case.rank_facts("events", "")
    if not case.reduce_is_broken or not events or not is_torn(events[0]):
        return None
    return Proposal(
        slug=SLUG,
        link=LINK,
        summary="no_sync covers a forward without its backward, or the reverse; DDP reads "
        "the flag in forward, and the last forward decides",
        facts=(
            "order of DDP forwards (F), backwards (B) and no_sync ( [ ] ): "
            f"{events[0][:32]}",
        ),
        fix="put forward and backward of a micro-batch inside, and leave both of the last "
        "one outside",
        code="with model.no_sync():\n    criterion(model(x), y).backward()",
        by_hand=True,
    )
