"""Detects loss/missing-world-scale."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from ddpcheck.diagnose.facts import injected
from ddpcheck.diagnose.facts.case import Case, Proposal
from ddpcheck.diagnose.facts.events import common_factor
from ddpcheck.diagnose.facts.loss import (
    constant_count,
    growth_fact,
    is_sum,
    ratio_evidence,
    ratio_fact,
    with_scale,
)
from ddpcheck.diagnose.facts.text import WORLD, names, number
from ddpcheck.run.intervention import Interventions, ScaleGradients, Switch

SLUG = "loss/missing-world-scale"
LINK = "loss"
_ALL = "the number in the global batch"


def detect(case: Case) -> Proposal | None:
    """Proposes it for a ratio of 1 on every rank and a loss that is a mean alone."""
    world, ratio = case.world_size, case.uniform_ratio
    if case.probed is None or world == 1:
        return None
    if case.losses_replicate:
        return _detect_some_parameters(case)
    if ratio is None:
        return _detect_all_gradients(case) or _detect_one_term(case)
    if abs(ratio - world) <= case.close * world:
        return _detect_added_gradient(case)
    return _of_the_loss(case) if abs(ratio - 1) <= case.close else None


def _of_the_loss(case: Case) -> Proposal | None:
    world = case.world_size
    why = f"in the single-process run the loss is a mean: {growth_fact(case)}"
    if is_sum(case):
        count = constant_count(case)
        if count is None:
            return None
        why = f"the loss is divided by {count}, a constant: {_ALL}"
    found = Proposal(
        slug=SLUG,
        link=LINK,
        summary="each rank divides its sum by the count of all ranks, and DDP "
        f"divides by {world} again: every gradient is 1/{world} of the "
        "single-process one",
        facts=(ratio_fact(case), why),
        fix="multiply by the world size",
        code=f"{WORLD}loss = world * local_sum / global_count",
        evidence=ratio_evidence(case),
    )
    if _is_all(case):  # a step with several backwards is scaled once
        found = dataclasses.replace(found, fixes=_scaled(world))
        return dataclasses.replace(found, fallback=_detect_some_parameters(case))
    return with_scale(case, found, world)


def _is_all(case: Case) -> bool:
    """Returns whether every gradient is 1/W of the single-process one."""
    factor = common_factor(case)
    return factor is not None and abs(factor * case.world_size - 1) <= case.close


def _scaled(world_size: int, names: Iterable[str] = ()) -> Interventions:
    return (ScaleGradients(factor=float(world_size), names=tuple(names)),)


def _detect_some_parameters(case: Case) -> Proposal | None:
    """Proposes it on trial for the parameters with this factor, if others are right.

    Their gradients may be computed separately, as those of sharded class centres.
    """
    wrong, world = case.mismatched("gradients", 0), case.world_size
    is_of_some = len(wrong) < case.facts["num_tensors"]
    if not (_is_all(case) and is_of_some) or case.reduce_is_broken:
        return None
    return Proposal(
        slug=SLUG,
        link=LINK,
        summary="backward starts from the rank's part of the gradient of the "
        f"global loss, and DDP divides it by {world} again: the parameters that it "
        f"reaches get 1/{world} of the single-process gradient",
        facts=(
            f"gradients that are {number(1 / world)} times the single-process ones: "
            f"{names(wrong)}",
            "all others are right",
        ),
        fix="multiply the gradient that backward starts from by the world size",
        code=f"{WORLD}features.backward(world * gradient)",
        fixes=_scaled(world, wrong),
        speculative=True,
        last_resort=1,
    )


def _detect_added_gradient(case: Case) -> Proposal | None:
    """Proposes it on trial for a term whose gradient an autograd function adds."""
    world = case.world_size
    fixes = injected.scaled(case, float(world))
    if not fixes:
        return None
    return Proposal(
        slug=SLUG,
        link=LINK,
        summary="a custom backward adds the rank's share of the gradient of all "
        f"ranks, and DDP divides it by {world}: that term of the loss has 1/{world} "
        "of its weight",
        facts=(
            injected.FACT,
            f"multiplied by {world}, that part is right",
        ),
        fix=("multiply the gradient that the autograd function adds by the world size"),
        code=f"{WORLD}return grad, world * torch.ones_like(aux)",
        fixes=fixes,
        speculative=True,
        last_resort=1,
    )


def _detect_all_gradients(case: Case) -> Proposal | None:
    """Proposes it on trial if all gradients are 1/W of the single-process ones."""
    if not case.loss_collectives or not _is_all(case):
        return None
    world = case.world_size
    return Proposal(
        slug=SLUG,
        link=LINK,
        summary="each rank has its part of the gradient of the global loss, and "
        f"DDP divides it by {world}: every gradient is 1/{world} of the "
        "single-process one",
        facts=(
            f"all gradients of the first step are {number(1 / world)} times the "
            "single-process ones",
            f"{case.loss_collectives} collectives called in one step",
        ),
        fix="multiply by the world size",
        code=f"{WORLD}loss = world * loss",
        fixes=_scaled(world),
        speculative=True,
    )


def _detect_one_term(case: Case) -> Proposal | None:
    """Proposes it on trial for one term, if others are right or wrong in another way."""
    if not case.has_cuts or case.loss_is_sound or not case.loss_asks_others:
        return None
    if case.couples:
        return None
    world = case.world_size
    return Proposal(
        slug=SLUG,
        link=LINK,
        summary="one term of the loss is divided by the count of all ranks, and "
        f"DDP divides by {world} again: that term has 1/{world} of its weight",
        facts=(
            ratio_fact(case),
            "when the sums over ranks without gradient are replaced by means over "
            "ranks, the gradient is right",
        ),
        fix="multiply that term by the world size",
        code=f"{WORLD}loss = world * local_sum / global_count + mean_term",
        fixes=(Switch.MEAN_OF_COUNTS,),
        speculative=True,
        evidence=ratio_evidence(case),
    )
