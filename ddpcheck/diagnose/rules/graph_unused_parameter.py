"""Detects graph/unused-parameter."""

from __future__ import annotations

from ddpcheck.diagnose.facts.case import Case, Proposal
from ddpcheck.diagnose.facts.text import names
from ddpcheck.diagnose.facts.unused import unused_parameters
from ddpcheck.run.intervention import Switch

SLUG = "graph/unused-parameter"
LINK = "reduce"


def detect(case: Case) -> Proposal | None:
    """Proposes it for parameters that no output of the model depends on."""
    if not case.reduce_is_broken or any(f.get("find_unused") for f in case.ranks):
        return None
    unused = unused_parameters(case)
    if not unused.everywhere or unused.in_output:
        return None
    return Proposal(
        summary="parameters without gradient in a backward keep their bucket "
        "incomplete: it is not reduced, and DDP's next forward raises",
        facts=(
            "trainable parameters that get no gradient in a backward, on every "
            f"rank: {len(unused.everywhere)}, {names(unused.everywhere)}",
            *unused.fault,
        ),
        fix="set find_unused_parameters=True, or remove the parameters",
        code="DistributedDataParallel(model, find_unused_parameters=True)",
        code_rests_on=(
            "some parameters get no gradient, and DDP does not look for "
            "unused parameters"
        ),
        fixes=(Switch.FIND_UNUSED,),
    )
