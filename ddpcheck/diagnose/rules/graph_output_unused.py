"""Detects graph/output-unused."""

from __future__ import annotations

from ddpcheck.diagnose.facts.case import Case, Proposal
from ddpcheck.diagnose.facts.text import names
from ddpcheck.diagnose.facts.unused import unused_parameters
from ddpcheck.run.intervention import Switch

SLUG = "graph/output-unused"
LINK = "reduce"


def detect(case: Case) -> Proposal | None:
    """Proposes it for parameters behind an output that get no gradient."""
    if not case.reduce_is_broken:
        return None
    unused = unused_parameters(case)
    if not unused.everywhere or not unused.in_output:
        return None
    return Proposal(
        summary="part of the model's output does not reach the loss, so the "
        "parameters behind it get no gradient and their bucket stays incomplete",
        facts=(
            "trainable parameters that get no gradient in a backward, on every "
            f"rank: {len(unused.everywhere)}, {names(unused.everywhere)}",
            *unused.fault,
        ),
        fix="return only what the loss uses, or set find_unused_parameters=True",
        code="DistributedDataParallel(model, find_unused_parameters=True)",
        fixes=(Switch.FIND_UNUSED,),
    )
