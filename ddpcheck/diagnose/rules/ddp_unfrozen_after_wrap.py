"""Detects ddp/unfrozen-after-wrap."""

from __future__ import annotations

from ddpcheck.diagnose.facts.case import Case, Proposal
from ddpcheck.diagnose.facts.text import names
from ddpcheck.run.intervention import Switch

SLUG = "ddp/unfrozen-after-wrap"
LINK = "reduce"


def detect(case: Case) -> Proposal | None:
    """Proposes wrapping again if requires_grad was False when DDP was built."""
    found = case.outcome.facts().get("unfrozen", [])
    if not found or not case.reduce_is_broken:
        return None
    return Proposal(
        summary="parameters were unfrozen after wrapping: DDP left them out when it was "
        "built",
        facts=(
            f"{len(found)} trained parameters had requires_grad=False when DDP was built: "
            f"{names(found)}",
        ),
        fix="unfreeze before wrapping, or wrap again",
        code="module.requires_grad_(True)\nmodel = DistributedDataParallel(module)",
        fixes=(Switch.REWRAP_TRAINABLE,),
        local=tuple(found),
        # Averaging by hand would also remove hooks: another cause may be among them.
    )
