"""Detects collective/backward-double-count."""

from __future__ import annotations

from ddpcheck.diagnose.facts.case import Case, Proposal
from ddpcheck.diagnose.facts.events import common_factor
from ddpcheck.diagnose.facts.loss import (
    losses_are_one,
    ratio_evidence,
    ratio_fact,
    scalings,
)
from ddpcheck.diagnose.facts.text import names
from ddpcheck.diagnose.proposal import tried
from ddpcheck.diagnose.rules.sync_comm_hook_semantics import is_summed_by_hand
from ddpcheck.run.intervention import ScaleGradients, Switch

SLUG = "collective/backward-double-count"
LINK = "loss"


def detect(case: Case) -> Proposal | None:
    """Proposes it for replicated losses with a ratio of W * W on every rank."""
    if case.loss_is_sound:
        return _detect_custom_backward(case)
    ratio = case.uniform_ratio
    world = case.world_size
    is_whole = losses_are_one(case) or _is_part_of_all(case)
    if world == 1:
        return None
    if ratio is None or not is_whole or abs(ratio / world**2 - 1) > case.close:
        return _detect_summed_term(case)
    found = Proposal(
        summary="every rank has the whole loss, and the backward of its collective sums "
        f"the gradients of all {world} ranks: every gradient is {world} times too large",
        facts=(
            "the ranks exchange the values that these addends are computed from"
            if case.is_part
            else "every rank has the same loss: it is already reduced",
            ratio_fact(case),
        ),
        fix="divide the reduced loss by the world size",
        code="loss = reduced_loss / dist.get_world_size()",
        evidence=ratio_evidence(case),
    )
    return tried(found, scalings(case, 1 / world))


def _is_part_of_all(case: Case) -> bool:
    """Returns whether addends use values of other ranks, and not only a count.

    The addends' values are unknown, so whether every rank computes the whole is too.
    """
    return case.is_part and case.loss_asks_others and bool(case.couples)


def _detect_summed_term(case: Case) -> Proposal | None:
    """Proposes it as speculative for a sum over ranks in place of a mean."""
    if not (case.has_cuts and case.loss_asks_others) or case.is_part:
        return None
    return Proposal(
        summary="a term of the loss, which every rank has in full, uses a sum over "
        "ranks that is not divided: the term and its gradient are "
        f"{case.world_size} times the single-process ones",
        facts=(
            ratio_fact(case),
            "when the sums over ranks with gradient are replaced by means over "
            "ranks, the gradient is right",
        ),
        fix="divide that sum by the world size",
        code="from torch.distributed.nn.functional import all_reduce\n"
        "term = all_reduce(term) / dist.get_world_size()",
        fixes=(Switch.MEAN_OF_SUMS,),
        speculative=True,
        evidence=ratio_evidence(case),
    )


def _detect_custom_backward(case: Case) -> Proposal | None:
    """Proposes it as speculative if some gradients are W times the single-process ones.

    An autograd function of the model sums them over ranks in its backward.
    """
    factor, world = common_factor(case), case.world_size
    if factor is None or abs(factor - world) > case.close * world:
        return None
    calls = max((f.get("collectives", 0) for f in case.ranks), default=0)
    if not calls or case.reduce_is_broken:
        return None
    if case.loss_is_sound and is_summed_by_hand(case):
        return _summed_once_more(case) if case.loss_asks_others else None
    found = case.mismatched("gradients", 0)
    return Proposal(
        summary="a custom backward of the model sums gradients over ranks, and DDP "
        f"averages these equal sums: the gradients are {world} times the "
        "single-process ones",
        facts=(
            f"{len(found)} gradients are {world} times the single-process ones, all "
            f"others are right: {names(found)}",
            f"{calls} collectives called in three steps, none of them in the loss "
            "with an effect on its gradient; without collectives in the backward "
            "of the model's autograd functions the runs are equal",
        ),
        fix=("let DDP reduce the gradients of parameters, or divide by the world size"),
        code="grad_weight = grad_weight / dist.get_world_size()",
        fixes=(Switch.BACKWARD_WITHOUT_GROUP,),
        speculative=True,
    )


def _summed_once_more(case: Case) -> Proposal:
    """Returns the proposal for a step that sums gradients itself, without DDP."""
    return Proposal(
        summary="the backward of the loss's collective sums the gradients of all "
        f"{case.world_size} ranks, and the training step sums them over ranks again",
        facts=(
            f"all gradients are {case.world_size} times the single-process ones; "
            "the parameters are in no DDP object, and the loss uses values of "
            "other ranks",
        ),
        fix="divide the reduced loss, or the summed gradients, by the world size",
        code="loss = reduced_loss / dist.get_world_size()",
        fixes=(ScaleGradients(factor=1 / case.world_size),),
    )
