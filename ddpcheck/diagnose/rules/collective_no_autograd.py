"""A raw collective in the loss: right value, wrong gradient."""

from __future__ import annotations

from ddpcheck.diagnose.case import Case, Proposal
from ddpcheck.diagnose.loss import ratio_evidence
from ddpcheck.diagnose.text import listed, number

SLUG = "collective/no-autograd"
LINK = "loss"


def detect(case: Case) -> Proposal | None:
    """Proposes it where every rank's loss is the reference's and its gradient is not."""
    if case.step is None or not case.has_cuts or case.loss_is_sound:
        return None
    if not case.losses_replicate or not case.loss_collectives:
        return None
    ratio = case.uniform_ratio
    if ratio is not None and ratio > case.world_size:
        return None  # collective/backward-double-count
    shown = (
        f"one factor on every rank: {number(ratio)}, expected {case.world_size}"
        if ratio is not None
        else "no factor per rank explains it: residuals "
        + listed(residual for _, residual in case.ratios())
    )
    return Proposal(
        slug=SLUG,
        link=LINK,
        summary="the loss uses collectives that autograd does not see: its value is "
        "that of the global batch, its gradient only the rank's own part",
        facts=(
            "every rank's loss equals the loss of one process",
            f"the gradient at the outputs is not {case.world_size} times the "
            f"reference's: {shown}",
            f"{case.loss_collectives} collectives called in one step",
        ),
        fix="use collectives that carry gradients",
        code="from torch.distributed.nn.functional import all_gather, all_reduce",
        fixes=("collectives.autograd",),
        evidence=ratio_evidence(case),
    )
