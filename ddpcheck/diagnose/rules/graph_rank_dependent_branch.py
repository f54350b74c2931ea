"""Ranks use different parameters."""

from __future__ import annotations

from ddpcheck.diagnose.case import Case, Proposal
from ddpcheck.diagnose.text import names
from ddpcheck.diagnose.unused import unused_parameters

SLUG = "graph/rank-dependent-branch"
LINK = "reduce"


def detect(case: Case) -> Proposal | None:
    """Proposes it for parameters with a gradient on some ranks only."""
    if not case.reduce_is_broken:
        return None
    unused = unused_parameters(case)
    if not unused.somewhere or unused.everywhere:
        return None
    return Proposal(
        slug=SLUG,
        link=LINK,
        summary="the ranks use different parameters, and DDP waits for all of them on every "
        "rank",
        facts=(
            f"{len(unused.somewhere)} parameters get a gradient on some ranks only: "
            f"{names(unused.somewhere)}",
            *unused.fault,
        ),
        fix="find_unused_parameters=True, or use every parameter with a factor of 0",
        code="DistributedDataParallel(model, find_unused_parameters=True)",
        fixes=("ddp.find_unused",),
    )
