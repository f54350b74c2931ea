"""Detects ddp/param-replaced-after-wrap."""

from __future__ import annotations

from ddpcheck.diagnose.facts.case import Case, Proposal
from ddpcheck.diagnose.facts.text import names
from ddpcheck.run.intervention import Switch

SLUG = "ddp/param-replaced-after-wrap"
LINK = "reduce"


def detect(case: Case) -> Proposal | None:
    """Proposes wrapping again if DDP was built with other tensors."""
    facts = case.outcome.facts()
    resized = facts.get("resized", [])
    if resized and case.run.faults:
        return _of_resized(resized)
    found, gone = facts.get("replaced", []), facts.get("gone", [])
    if not (found or gone) or not case.reduce_is_broken:
        return None
    return Proposal(
        summary="parameters were replaced after wrapping: DDP's hooks are on "
        "tensors that are no longer trained",
        facts=(
            f"{len(found)} trained parameters are in no DDP object and are not the "
            f"tensors that the model was built with: {names(found)}"
            if found
            else f"{len(gone)} parameters that DDP was built with no longer belong "
            f"to the model, and DDP waits for their gradients: {names(gone)}",
        ),
        fix="copy values into the existing parameters, or wrap last",
        code="model = DistributedDataParallel(module)  # the last thing",
        code_rests_on="trained tensors are not those that DDP was built with",
        fixes=(Switch.REWRAP,),
        local=tuple(found),
    )


def _of_resized(resized: list[str]) -> Proposal:
    """Returns the proposal for parameters whose shape is changed in place.

    No run proves it: DDP and an average by hand hold the node that accumulates the
    gradient, and that node expects the former shape.
    """
    return Proposal(
        summary="parameters were resized after wrapping: DDP's hooks and buckets "
        "have the old shape",
        facts=(
            f"{len(resized)} parameters had another shape when DDP was built: "
            f"{names(resized)}",
        ),
        fix="resize first, wrap last",
        needs_no_proof=True,
    )
