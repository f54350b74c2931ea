"""Trained parameters are in no DDP object."""

from __future__ import annotations

from ddpcheck.diagnose.case import Case, Proposal
from ddpcheck.diagnose.text import names

SLUG = "ddp/wrapper-missing"
LINK = "reduce"


def detect(case: Case) -> Proposal | None:
    """Proposes it where original parameters are outside every DDP object."""
    found = case.outcome.facts().get("outside", [])
    if not found or not case.reduce_is_broken:
        return None
    return Proposal(
        slug=SLUG,
        link=LINK,
        summary="trained parameters are in no DDP object, so nobody averages their "
        "gradients",
        facts=(
            f"{len(found)} trained parameters outside every DDP object: {names(found)}",
        ),
        fix="wrap them too",
        code="model = DistributedDataParallel(whole_model)",
        by_hand=True,
    )
