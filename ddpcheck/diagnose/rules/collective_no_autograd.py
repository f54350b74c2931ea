"""Detects collective/no-autograd."""

from __future__ import annotations

import dataclasses

from ddpcheck.diagnose.facts.case import Case, Proposal
from ddpcheck.diagnose.facts.loss import global_loss_fix, ratio_evidence
from ddpcheck.diagnose.facts.text import in_group, listed, number
from ddpcheck.run.intervention import ScaleLoss, Switch

SLUG = "collective/no-autograd"
LINK = "loss"


def detect(case: Case) -> Proposal | None:
    """Proposes it if every rank's loss is right and its gradient is not."""
    if case.probed is None or not case.has_cuts or case.loss_is_sound:
        return None
    ratio = case.uniform_ratio
    # The loss is over all samples, but the gradient is only the rank's own part.
    is_own_part = ratio is not None and abs(ratio - 1) <= case.close and case.couples
    # Not even the own part: no gathered row is the rank's own tensor.
    is_lost = ratio == 0 and case.couples
    is_own_part = is_own_part or is_lost
    # The mean may have another factor, to correct the gradients.
    is_scaled = bool(case.mean_loss_power) and case.couples
    known = case.losses_replicate or case.losses_average or is_own_part or is_scaled
    if not case.loss_collectives or not known:
        return None
    if (ratio is not None and ratio > case.world_size) or _have_too_much(case):
        return None  # collective/backward-double-count
    shown = (
        f"one factor on every rank: {number(ratio)}, expected {case.world_size}"
        if ratio is not None
        else "no single factor per rank explains it: residuals "
        + listed(residual for _, residual in case.ratios())
    )
    found = Proposal(
        summary="the loss uses collectives without autograd: its value is that of "
        "the global batch, its gradient only the rank's own part",
        facts=(
            "every rank's loss equals the single-process loss"
            if case.losses_replicate
            else "the mean of the per-rank losses is the single-process loss"
            if case.losses_average
            else "the mean of the per-rank losses is the single-process loss times "
            + number(case.world_size ** (case.mean_loss_power or 0))
            if is_scaled
            else "the loss at a sample depends on the other samples' outputs",
            f"the gradient at the outputs is not {case.world_size} times the "
            f"single-process one: {shown}",
            f"{case.loss_collectives} collectives called in one step",
        ),
        fix="use collectives with autograd",
        code="from torch.distributed.nn.functional import all_gather, all_reduce",
        fixes=(Switch.COLLECTIVES_WITH_GRADIENT,),
        # A mean of losses may also be right because the loss is a mean over samples.
        speculative=not (
            case.losses_replicate
            or is_own_part
            or is_scaled
            or (case.losses_average and case.loss_asks_others and case.couples)
        ),
        evidence=ratio_evidence(case),
    )
    may_scale = is_own_part or (ratio is not None and abs(ratio - 1) <= case.close)
    return _with_fallbacks(case, found, may_scale=may_scale)


def _have_too_much(case: Case) -> bool:
    """Returns whether every wrong addend is at least W times too large."""
    ranks = case.probed_ranks
    cuts = [c for rank in ranks for addend in rank.addends for c in addend if c.norm]
    wrong = [c for c in cuts if abs(c.ratio / case.world_size - 1) > case.close]
    return bool(wrong) and all(
        c.ratio > case.world_size and c.residual <= case.close for c in wrong
    )


def _with_fallbacks(case: Case, found: Proposal, *, may_scale: bool) -> Proposal:
    """Returns the proposal with fallbacks, if collectives with autograd are not enough.

    `may_scale`: the rank's own part is right if it is multiplied by W.
    """
    # A tensor that was detached before carries no gradient through any collective.
    wide = dataclasses.replace(found, fixes=global_loss_fix(case))
    wide = dataclasses.replace(
        found,
        fix="gather the tensor with its gradient, not a detached copy, using "
        "collectives with autograd",
        fixes=(Switch.COLLECTIVES_ATTACHED,),
        fallback=wide,
    )
    if not may_scale:
        return dataclasses.replace(found, fallback=wide)
    # If there is no such collective, the rank's part is multiplied by W.
    scaled = dataclasses.replace(
        found,
        fix="multiply by the world size the term of which each rank has its own "
        "part; or train on the rank's own loss, and reduce a copy of it for the log",
        code="logged = loss.detach().clone()\n"
        + in_group("dist.all_reduce(logged, op=dist.ReduceOp.AVG)")
        + "\nloss.backward()",
        fixes=(ScaleLoss(factor=float(case.world_size)),),
        fallback=wide,
    )
    return dataclasses.replace(found, fallback=scaled)
