"""Detects ddp/converted-after-wrap."""

from __future__ import annotations

from ddpcheck.diagnose.facts.case import Case, Proposal
from ddpcheck.diagnose.facts.text import names
from ddpcheck.run.intervention import Switch

SLUG = "ddp/converted-after-wrap"
LINK = "reduce"


def detect(case: Case) -> Proposal | None:
    """Proposes wrapping again if parameters were converted after DDP was built."""
    facts = case.outcome.facts()
    converted, moved = facts.get("converted", []), facts.get("moved", [])
    if not (converted or moved) or not case.reduce_is_broken:
        return None
    what = "dtype or memory format" if converted else "memory"
    found = converted or moved
    return Proposal(
        summary="the model was converted after wrapping: gradients no longer match "
        "DDP's hooks or the layout of its buckets",
        facts=(
            f"{len(found)} parameters had another {what} when DDP was built: "
            f"{names(found)}",
        ),
        fix="convert first, wrap last",
        code="model = DistributedDataParallel(model.to(dtype))",
        fixes=(Switch.REWRAP,),
        # Converted and back: averaged weights that replace the trained ones do the same.
        speculative=not converted,
    )
