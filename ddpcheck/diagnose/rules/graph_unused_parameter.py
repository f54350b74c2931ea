"""A parameter never gets a gradient."""

from __future__ import annotations

from ddpcheck.diagnose.case import Case, Proposal
from ddpcheck.diagnose.text import names
from ddpcheck.diagnose.unused import unused_parameters

SLUG = "graph/unused-parameter"
LINK = "reduce"


def detect(case: Case) -> Proposal | None:
    """Proposes it for parameters of modules that nothing calls."""
    if not case.reduce_is_broken or any(case.rank_facts("find_unused", False)):
        return None
    unused = unused_parameters(case)
    if not unused.everywhere or unused.called:
        return None
    return Proposal(
        slug=SLUG,
        link=LINK,
        summary="parameters that never get a gradient keep their bucket open: the first step's "
        "gradients stay local, the second step raises",
        facts=(
            f"{len(unused.everywhere)} trainable parameters get no gradient on any rank: "
            f"{names(unused.everywhere)}",
            *unused.fault,
        ),
        fix="find_unused_parameters=True, or remove the parameters",
        code="DistributedDataParallel(model, find_unused_parameters=True)",
        fixes=("ddp.find_unused",),
    )
