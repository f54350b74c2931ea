"""Detects ddp/wrapper-missing."""

from __future__ import annotations

from ddpcheck.diagnose.facts.case import Case, Proposal
from ddpcheck.diagnose.facts.external_state import before_gradients
from ddpcheck.diagnose.facts.text import names
from ddpcheck.diagnose.facts.unused import reduces_by_hand
from ddpcheck.diagnose.proposal import replaced
from ddpcheck.run.intervention import Substitute

SLUG = "ddp/wrapper-missing"
LINK = "reduce"


def detect(case: Case) -> Proposal | None:
    """Proposes it if original parameters are outside every DDP object."""
    if not case.reduce_is_broken or case.run.ranks_agree:
        return _detect_outside_model(
            case
        )  # on equal gradients: other code averages them
    step, found = case.first_broken("gradients"), _outside(case)
    if not found:
        return None
    averages = reduces_by_hand(case)
    # It has averaged before: its own average may be wrong.
    has_averaged = averages and any(
        quantity.compared
        for earlier in range(step or 0)
        for quantity in case.step_quantity("gradients", earlier)
    )
    starts = [f.get("start_differs", []) for f in case.ranks]
    others = {name for each in starts for name in each} & set(found)
    return Proposal(
        summary="trained parameters are in no DDP object, and the step's own "
        "reduction does not give the mean of their gradients"
        if averages
        else (
            "trained parameters are in no DDP object, so their gradients are not "
            "averaged"
        ),
        facts=(
            f"{len(found)} trained parameters outside every DDP object: {names(found)}",
            *_start_facts(others),
        ),
        fix=f"wrap {names(found)} too",
        fixes=(Substitute(boundary="start"),) if others else (),
        code="model = DistributedDataParallel(whole_model)",
        code_rests_on="" if averages else "trained parameters are in no DDP object",
        by_hand=True,
        local=tuple(found),
        speculative=has_averaged,
        last_resort=2 * has_averaged,
    )


def is_seen(case: Case) -> bool:
    """Returns whether nothing averages the gradients of some parameters."""
    is_broken = case.reduce_is_broken and not case.run.ranks_agree
    return is_broken and bool(_outside(case)) and not reduces_by_hand(case)


def _outside(case: Case) -> list[str]:
    step = case.first_broken("gradients")
    wrong = set(case.mismatched("gradients", step)) if step is not None else set()
    # Others get no gradient (a teacher), or are averaged by hand.
    return [n for n in case.outcome.facts().get("outside", []) if n in wrong]


def _start_facts(others: set[str]) -> tuple[str, ...]:
    """Returns what is to be said of parameters that ranks start with values of."""
    if not others:
        return ()
    return (f"{len(others)} of them start with other values on other ranks",)


def detect_hidden(case: Case) -> Proposal | None:
    """Returns what it detects; parameters of the loss get all of their gradient."""
    found = detect(case)
    if found is None:
        return None
    why = (
        "no run separates this cause: when all ranks have the same loss, they agree "
        "anyway"
    )
    return replaced(found, facts=(*found.facts, why), by_hand=False)


def _detect_outside_model(case: Case) -> Proposal | None:
    """Proposes it as speculative for trained parameters outside the model.

    For example those of a loss module, which is not wrapped.
    """
    found = before_gradients(case)
    if found is None or not found.is_trained:
        return None
    return Proposal(
        summary="parameters trained in addition to the model are in no DDP object, "
        "so their gradients are not averaged",
        facts=found.facts,
        fix="wrap them too, or average their gradients before their optimizer steps",
        fixes=found.fixes,
        speculative=True,
    )
