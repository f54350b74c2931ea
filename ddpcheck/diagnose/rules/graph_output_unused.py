"""An output that the loss does not use."""

from __future__ import annotations

from ddpcheck.diagnose.case import Case, Proposal
from ddpcheck.diagnose.text import names
from ddpcheck.diagnose.unused import unused_parameters

SLUG = "graph/output-unused"
LINK = "reduce"


def detect(case: Case) -> Proposal | None:
    """Proposes it for parameters of modules that are called and get no gradient."""
    if not case.reduce_is_broken:
        return None
    unused = unused_parameters(case)
    if not unused.everywhere or not unused.called:
        return None
    return Proposal(
        slug=SLUG,
        link=LINK,
        summary="part of the model's output does not reach the loss, so the parameters behind it "
        "get no gradient and their bucket stays open",
        facts=(
            f"{len(unused.everywhere)} trainable parameters get no gradient on any rank: "
            f"{names(unused.everywhere)}",
            *unused.fault,
        ),
        fix="return only what the loss uses, or find_unused_parameters=True",
        code="DistributedDataParallel(model, find_unused_parameters=True)",
        fixes=("ddp.find_unused",),
    )
