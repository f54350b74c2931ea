"""Detects sync/scaler-desync."""

from __future__ import annotations

from ddpcheck.diagnose.facts import events
from ddpcheck.diagnose.facts.case import Case, Proposal
from ddpcheck.diagnose.facts.text import in_group, listed, number
from ddpcheck.diagnose.proposal import replaced
from ddpcheck.run.intervention import Switch

SLUG = "sync/scaler-desync"
LINK = "reduce"
_POWERS = "powers of two apart"


def detect(case: Case) -> Proposal | None:
    """Proposes it if ranks divide by different scales, each by that of its loss."""
    step = case.first_broken("gradients")
    if not case.reduce_is_broken or step is None:
        return None
    if case.probed is not None and not case.loss_is_sound:
        return None  # scaled up and down again; a rank's own count is not undone
    fact = _of_scales(case) or _of_gradients(case, step)
    return None if fact is None else _proposal(fact)


def detect_hidden(case: Case) -> Proposal | None:
    """Returns it for scales that are powers of two apart, whatever the loss."""
    fact = _of_scales(case)
    if fact is None or _POWERS not in fact:
        return None
    why = (
        "no run separates this cause: when all ranks have the same loss, they use "
        "the same scale"
    )
    return replaced(_proposal(fact, why), fixes=(), needs_no_proof=False)


def _proposal(*facts: str) -> Proposal:
    return Proposal(
        summary="the ranks have different loss scales: scaled gradients are averaged, and "
        "each rank divides by its own scale",
        facts=facts,
        fix=(
            "use one scale for all ranks: all-reduce the value that decides it, "
            "for example the check for inf"
        ),
        code=in_group("dist.all_reduce(found_inf, op=dist.ReduceOp.MAX)"),
        fixes=(Switch.MEAN_OF_NUMBERS,),
        needs_no_proof=True,
    )


def _of_scales(case: Case) -> str | None:
    """Returns the factors of gradients after backward, if they differ between ranks."""
    scales = [rank.after_backward for rank in case.probed_ranks]
    if not scales or not all(scales) or max(scales) == min(scales):
        return None
    are_powers = all(
        events.is_power_of_two(case, scale / scales[0]) for scale in scales
    )
    is_given = any(fix.place == "loss" for fix in case.outcome.spec.fixes)
    if is_given and not are_powers:
        return None  # the factor comes from a fix
    return (
        f"after backward the ranks multiply their gradients by {listed(scales)}, "
        "which undoes the factors of their losses"
        + (f": {_POWERS}" if are_powers else "")
    )


def _of_gradients(case: Case, step: int) -> str | None:
    factor = events.factor_between_ranks(case, "gradients", step)
    if factor is None or not events.is_power_of_two(case, factor):
        return None
    return (
        f"in step {step + 1} all gradients of one rank are {number(factor)} times "
        "those of another, a power of two"
    )
