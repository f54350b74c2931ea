"""Detects loss/double-world-scale."""

from __future__ import annotations

from ddpcheck.diagnose.facts import injected
from ddpcheck.diagnose.facts.case import Case, Proposal
from ddpcheck.diagnose.facts.events import common_factor
from ddpcheck.diagnose.facts.loss import (
    losses_are_one,
    ratio_evidence,
    ratio_fact,
    shrinks,
    with_scale,
)
from ddpcheck.diagnose.facts.text import names
from ddpcheck.run.intervention import ScaleGradients

SLUG = "loss/double-world-scale"
LINK = "loss"


def detect(case: Case) -> Proposal | None:
    """Proposes it for a ratio of W * W on every rank, the losses not replicated."""
    ratio = case.uniform_ratio
    world = case.world_size
    if world == 1:
        return None
    if _is_beside_counts(case):
        return with_scale(case, proposal(case, (ratio_fact(case),)), 1 / world)
    if ratio is None or abs(ratio / world**2 - 1) > case.close:
        return _detect_some_parameters(case) or _detect_added_gradient(case)
    if losses_are_one(case) or shrinks(case):
        return None
    return with_scale(case, proposal(case, (ratio_fact(case),)), 1 / world)


def _is_beside_counts(case: Case) -> bool:
    """Returns whether ranks have the factors W * N / n_r: each divides by its own count.

    Shares of all samples add up to 1, whatever is counted.
    """
    ratios = case.rank_ratios
    if ratios is None or case.uniform_ratio is not None or not all(ratios):
        return False
    shares = sum(case.world_size / ratio for ratio in ratios)
    return min(ratios) > 0 and abs(shares - 1) <= case.close


def _detect_added_gradient(case: Case) -> Proposal | None:
    """Proposes it on trial for a term whose gradient an autograd function adds."""
    world = case.world_size
    fixes = injected.scaled(case, 1 / world)
    if not fixes:
        return None
    return Proposal(
        slug=SLUG,
        link=LINK,
        summary="a custom backward adds the gradient of a mean over the shard and "
        f"multiplies it by {world}: that term of the loss has {world} times its "
        "weight",
        facts=(
            injected.FACT,
            f"multiplied by 1/{world}, that part is right",
        ),
        fix="remove the factor from the gradient that the autograd function adds",
        code="return grad, torch.ones_like(aux)  # without * world_size",
        fixes=fixes,
        speculative=True,
        last_resort=1,
    )


def _detect_some_parameters(case: Case) -> Proposal | None:
    """Proposes it on trial for parameters that the global loss uses directly.

    The factor corrects outputs whose gradient stays on their rank. A temperature, or
    the proxies of classes, have their full gradient on every rank.
    """
    factor, world = common_factor(case), case.world_size
    if factor is None or abs(factor / world - 1) > case.close:
        return None
    found = case.mismatched("gradients", 0)
    is_of_some = len(found) < case.facts["num_tensors"]
    if not is_of_some or case.reduce_is_broken:
        return None
    if not case.loss_asks_others:
        return _on_the_way(case, found)
    return Proposal(
        slug=SLUG,
        link=LINK,
        summary=f"every rank multiplies the loss of the global batch by {world}, "
        "which is right only for outputs whose gradient stays on their rank; "
        f"parameters that the loss uses directly get {world} times the "
        "single-process gradient",
        facts=(
            f"gradients that are {world} times the single-process ones: {names(found)}",
            "all others are right",
        ),
        fix="gather with autograd, and remove the factor",
        fixes=(ScaleGradients(factor=1 / world, names=tuple(found)),),
        evidence={"factor": factor},
        speculative=True,
        last_resort=1,
    )


def _on_the_way(case: Case, found: list[str]) -> Proposal:
    """Returns the proposal, on trial, for gradients multiplied during backward."""
    world = case.world_size
    return Proposal(
        slug=SLUG,
        link=LINK,
        summary="the backward multiplies the gradients of some parameters by "
        f"{world}, for example in a hook or an autograd function, but DDP averages "
        "the per-rank gradients",
        facts=(
            f"gradients that are {world} times the single-process ones: {names(found)}",
            "all others are right, and the loss's gradient at the outputs is right too",
        ),
        fix="remove the factor",
        code="return grad * factor  # without * world_size",
        fixes=(ScaleGradients(factor=1 / world, names=tuple(found)),),
        speculative=True,
        last_resort=1,
    )


def proposal(case: Case, facts: tuple[str, ...]) -> Proposal:
    """Returns the proposal, without a run to prove it."""
    world = case.world_size
    return Proposal(
        slug=SLUG,
        link=LINK,
        summary="the loss is a mean over the shard and is also multiplied by "
        f"{world}: every gradient is {world} times the single-process one",
        facts=facts,
        fix="remove the factor; it belongs to a sum over a global count only",
        code="loss = criterion(output, target)  # without * world_size",
        code_rests_on=""
        if case.is_part
        else "the gradient of the whole loss is W times too large on all ranks",
        evidence=ratio_evidence(case),
    )
