"""Parameters were frozen after wrapping."""

from __future__ import annotations

from ddpcheck.diagnose.case import Case, Proposal
from ddpcheck.diagnose.text import names

SLUG = "ddp/frozen-after-wrap"
LINK = "reduce"


def detect(case: Case) -> Proposal | None:
    """Proposes wrapping anew where requires_grad was True when DDP was built."""
    found = case.outcome.facts().get("frozen", [])
    if not found or not case.reduce_is_broken:
        return None
    return Proposal(
        slug=SLUG,
        link=LINK,
        summary="parameters were frozen after wrapping: their bucket waits for gradients "
        "that never come",
        facts=(
            f"{len(found)} parameters had requires_grad=True when DDP was built and have "
            f"False now: {names(found)}",
        ),
        fix="freeze before wrapping, or wrap again",
        code="module.requires_grad_(False)\nmodel = DistributedDataParallel(model.module)",
        fixes=("ddp.find_unused",),
        or_by_hand=True,
    )
