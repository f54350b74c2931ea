"""Several backwards after one forward."""

from __future__ import annotations

from ddpcheck.diagnose.case import Case, Proposal

SLUG = "ddp/multi-backward"
LINK = "reduce"


def detect(case: Case) -> Proposal | None:
    """Proposes it for a step with more backwards than DDP forwards before them."""
    events = case.rank_facts("events", "")
    if not case.reduce_is_broken or not events:
        return None
    if "BB" not in events[0] or "G" in events[0] or "[" in events[0]:
        return None
    return Proposal(
        slug=SLUG,
        link=LINK,
        summary="DDP reduces the first backward after its forward only; the second one's "
        "gradients stay local",
        facts=(
            f"order of DDP forwards (F) and backwards (B) over all steps: {events[0][:24]}",
        ),
        fix="one backward on the sum of the losses, or forward, backward, forward, backward",
        code="(first + second).backward()",
        by_hand=True,
    )
