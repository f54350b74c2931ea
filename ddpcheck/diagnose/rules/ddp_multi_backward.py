"""Detects ddp/multi-backward."""

from __future__ import annotations

from ddpcheck.diagnose.facts.case import Case, Proposal
from ddpcheck.diagnose.facts.events import goes_past_the_wrapper, has_later_backward

SLUG = "ddp/multi-backward"
LINK = "reduce"


def detect(case: Case) -> Proposal | None:
    """Proposes it for a step with more backwards than DDP forwards before them."""
    events = [f.get("events", "") for f in case.ranks]
    if not case.reduce_is_broken or not events:
        return None
    if not has_later_backward(case) or "[" in events[0] or goes_past_the_wrapper(case):
        return None
    return Proposal(
        summary="DDP reduces only the first backward after its forward; the "
        "gradients of the second stay local",
        facts=(
            f"order of DDP forwards (F) and backwards (B) over all steps: {events[0][:24]}",
        ),
        fix=(
            "call backward once on the sum of the losses, or alternate: forward, "
            "backward, forward, backward"
        ),
        code="(first + second).backward()",
        code_rests_on="several backwards follow one forward of DDP",
        by_hand=True,
    )
