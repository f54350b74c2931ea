"""Detects graph/opaque-output."""

from __future__ import annotations

from ddpcheck.diagnose.facts.case import Case, Proposal
from ddpcheck.run.intervention import Switch

SLUG = "graph/opaque-output"
LINK = "reduce"


def detect(case: Case) -> Proposal | None:
    """Proposes it if DDP finds fewer tensors in the output than there are."""
    if not case.reduce_is_broken or not any(f.get("opaque_output") for f in case.ranks):
        return None
    kind = next(filter(None, (f.get("opaque_output") for f in case.ranks)))
    return Proposal(
        summary="the model returns an object in which DDP finds no tensors, so DDP "
        "does not know which gradients to wait for",
        facts=(f"the output is a {kind}; torch's pytree finds no tensor in it",),
        fix="return tensors, tuples or dicts, or register the class as a pytree node",
        code='return {"logits": logits}',
        fixes=(Switch.PLAIN_OUTPUT,),
        # Tensors that an object computes later cannot be passed through DDP.
    )
