"""Detects sync/grad-alias."""

from __future__ import annotations

from ddpcheck.diagnose.facts.case import Case, Proposal
from ddpcheck.run.intervention import Switch

SLUG = "sync/grad-alias"
LINK = "reduce"


def detect(case: Case) -> Proposal | None:
    """Proposes it for gradient_as_bucket_view if averaging by hand is right."""
    if not case.reduce_is_broken or not any(f.get("bucket_view") for f in case.ranks):
        return None
    return Proposal(
        summary="gradients that the step keeps are views of DDP's buckets, and the "
        "next backward overwrites them",
        facts=(
            "gradient_as_bucket_view=True: after the first step p.grad is a view of "
            "the bucket",
        ),
        fix=("clone the gradients that you keep, or set gradient_as_bucket_view=False"),
        code="kept = [p.grad.clone() for p in model.parameters()]",
        fixes=(Switch.BUCKET_VIEW_OFF,),
    )
