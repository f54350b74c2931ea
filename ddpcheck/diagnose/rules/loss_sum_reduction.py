"""Detects loss/sum-reduction."""

from __future__ import annotations

import dataclasses

from ddpcheck.diagnose.facts.case import Case, Proposal
from ddpcheck.diagnose.facts.events import common_factor
from ddpcheck.diagnose.facts.loss import (
    constant_count,
    global_loss_fix,
    growth_fact,
    is_made_by_the_model,
    is_sum,
    ratio_evidence,
    ratio_fact,
    with_scale,
)
from ddpcheck.diagnose.facts.text import WORLD
from ddpcheck.run.intervention import ScaleLoss, ScaleTerms

SLUG = "loss/sum-reduction"
LINK = "loss"


def detect(case: Case) -> Proposal | None:
    """Proposes it for a ratio of 1 on every rank and a loss that grows with the batch."""
    if case.has_cuts and case.mixes_a_sum and case.world_size > 1:
        return _of_one_term(case)
    if not case.has_cuts and is_made_by_the_model(case):
        return _detect_next_to_penalty(case)
    ratio = case.uniform_ratio
    if ratio is None or case.world_size == 1 or abs(ratio - 1) > case.close:
        return None
    if case.losses_replicate or case.probed is None:
        return None
    if not is_sum(case) or constant_count(case):
        return None
    world = case.world_size
    found = Proposal(
        slug=SLUG,
        link=LINK,
        summary="the loss is a sum over the shard's samples, and DDP divides the "
        f"summed gradients by {world}: every gradient is 1/{world} of the "
        "single-process one",
        facts=(
            ratio_fact(case),
            f"{growth_fact(case)}: the loss grows with the batch",
        ),
        fix="take the mean, or multiply the summed loss by the world size",
        code=f"{WORLD}loss = world * loss  # or reduction='mean'",
        code_rests_on=""
        if case.is_part
        else "the whole loss doubles with the batch, and its gradient is 1/W on all ranks",
        evidence=ratio_evidence(case),
    )
    if case.direct():
        found = dataclasses.replace(
            found,
            summary="the loss is a sum over the shard's samples, and DDP divides "
            f"the summed gradients by {world}: the gradient of the data term is "
            f"1/{world} of the single-process one",
            code=f"{WORLD}loss = world * summed_term + penalty",
        )
    return with_scale(case, found, world)


def _detect_next_to_penalty(case: Case) -> Proposal | None:
    """Proposes it on trial if no output separates the data term from a penalty."""
    world = case.world_size
    if world == 1 or case.loss_collectives or not case.run.ranks_agree:
        return None
    if common_factor(case) is not None or case.run.faults:
        return None
    return Proposal(
        slug=SLUG,
        link=LINK,
        summary="the loss is a sum over the shard's samples plus a term without "
        f"data, and DDP divides the summed gradients by {world}: the gradient of "
        f"the data term is 1/{world} of the single-process one",
        facts=(
            "the model returns its loss, and no module's output carries its "
            "gradient: parameters get the gradients of both terms together",
            f"when the data term is multiplied by {world}, and the rest is not, the "
            "gradients equal the single-process gradients",
        ),
        fix="take the mean, or multiply the summed term by the world size",
        code=f"{WORLD}loss = world * summed_term + penalty",
        fixes=(ScaleLoss(factor=world), ScaleTerms(factor=1 / world)),
        speculative=True,
    )


def _of_one_term(case: Case) -> Proposal:
    world = case.world_size
    return Proposal(
        slug=SLUG,
        link=LINK,
        summary="one term of the loss is a sum over the shard's samples, another "
        f"is a mean, and DDP divides the gradients of both by {world}: the sum has "
        f"1/{world} of its weight",
        facts=(
            ratio_fact(case),
            "repeating the batch halves the gradient of a mean and keeps that of a "
            f"sum, which separates the two: on the ranks the mean's part is {world} "
            "times the single-process one, the sum's part equals it",
        ),
        fix=(
            "take the mean in every term, or multiply the summed term by the world size"
        ),
        code=f"{WORLD}loss = mean_term + world * summed_term",
        code_rests_on="repeating the batch separates the sum's part from the mean's",
        fixes=global_loss_fix(case),
        evidence=ratio_evidence(case),
    )
