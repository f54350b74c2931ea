"""The model was converted after wrapping."""

from __future__ import annotations

from ddpcheck.diagnose.case import Case, Proposal
from ddpcheck.diagnose.text import names

SLUG = "ddp/converted-after-wrap"
LINK = "reduce"


def detect(case: Case) -> Proposal | None:
    """Proposes wrapping anew where dtypes changed since DDP was built."""
    found = case.outcome.facts().get("converted", [])
    if not found or not case.reduce_is_broken:
        return None
    return Proposal(
        slug=SLUG,
        link=LINK,
        summary="the model was converted after wrapping: gradients no longer fit what "
        "DDP made for them, its hooks or the layout of its buckets",
        facts=(
            f"{len(found)} parameters had another dtype or memory format when DDP "
            f"was built: {names(found)}",
        ),
        fix="convert first, wrap last",
        code="model = DistributedDataParallel(model.to(dtype))",
        fixes=("ddp.rewrap",),
        or_by_hand=True,
    )
