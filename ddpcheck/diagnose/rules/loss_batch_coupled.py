"""The loss is not a sum over samples."""

from __future__ import annotations

from ddpcheck.diagnose.case import Case, Proposal
from ddpcheck.diagnose.loss import global_loss_fix, ratio_evidence
from ddpcheck.diagnose.text import number

SLUG = "loss/batch-coupled"
LINK = "loss"


def detect(case: Case) -> Proposal | None:
    """Proposes it where one sample's gradient depends on other samples' outputs."""
    if not case.has_cuts or case.loss_is_sound or not case.couples:
        return None
    if case.losses_replicate:
        return None  # the value is global: collective/no-autograd and its kin
    assert case.step is not None
    assert case.step.reference.coupling is not None
    residuals = [residual for _, residual in case.ratios()]
    return Proposal(
        slug=SLUG,
        link=LINK,
        summary="the loss is not a sum over samples: the mean of the shards' losses is "
        "not the loss of the batch",
        facts=(
            "moving the outputs of one half of the batch changes the loss gradient at "
            f"the other half by {number(case.step.reference.coupling)} of its size",
            "no factor per rank explains the gradient at the outputs: residual "
            f"{number(max(residuals))} of its size",
        ),
        fix="reduce the loss's sufficient statistics over ranks with autograd, or gather "
        "outputs and targets with gradient and compute the loss globally",
        code="from torch.distributed.nn.functional import all_gather, all_reduce\n"
        "stats = all_reduce(stats)  # e.g. intersection and union, before dividing",
        fixes=global_loss_fix(case),
        evidence=ratio_evidence(case),
    )
