"""The forward does not go through DDP."""

from __future__ import annotations

from ddpcheck.diagnose.case import Case, Proposal

SLUG = "ddp/forward-bypassed"
LINK = "reduce"


def detect(case: Case) -> Proposal | None:
    """Proposes it where DDP.forward is not called in a step that trains."""
    forwards = case.rank_facts("forwards", [])
    events = case.rank_facts("events", "")
    if not case.reduce_is_broken or not forwards or not forwards[0]:
        return None
    if min(forwards[0]) > 0 or not ("B" in events[0] or "G" in events[0]):
        return None
    idle = sum(count == 0 for count in forwards[0])
    return Proposal(
        slug=SLUG,
        link=LINK,
        summary="the forward does not go through DistributedDataParallel, so its reducer "
        "is never armed and every rank trains alone",
        facts=(
            f"DDP.forward was called 0 times on {idle} of {len(forwards[0])} DDP objects, "
            f"backward {events[0].count('B')} times",
        ),
        fix="call the wrapped model itself; put what else it does into its forward",
        code="output = model(inputs)  # not model.module.encode(inputs)",
        by_hand=True,
    )
