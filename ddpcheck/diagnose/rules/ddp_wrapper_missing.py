"""Detects ddp/wrapper-missing."""

from __future__ import annotations

from ddpcheck.diagnose.facts.case import Case, Proposal
from ddpcheck.diagnose.facts.external_state import before_gradients
from ddpcheck.diagnose.facts.text import names
from ddpcheck.diagnose.facts.unused import reduces_by_hand
from ddpcheck.diagnose.proposal import replaced

SLUG = "ddp/wrapper-missing"
LINK = "reduce"


def detect(case: Case) -> Proposal | None:
    """Proposes it if original parameters are outside every DDP object."""
    if not case.reduce_is_broken or case.run.ranks_agree:
        return _detect_outside_model(
            case
        )  # on equal gradients: other code averages them
    step = case.first_broken("gradients")
    wrong = set(case.mismatched("gradients", step)) if step is not None else set()
    # Others get no gradient (a teacher), or are averaged by hand.
    found = [n for n in case.outcome.facts().get("outside", []) if n in wrong]
    if not found:
        return None
    averages = reduces_by_hand(case)
    # It has averaged before: its own average may be wrong.
    has_averaged = averages and any(
        quantity.compared
        for earlier in range(step or 0)
        for quantity in case.step_quantity("gradients", earlier)
    )
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
        ),
        fix=f"wrap {names(found)} too",
        code="model = DistributedDataParallel(whole_model)",
        code_rests_on="" if averages else "trained parameters are in no DDP object",
        by_hand=True,
        local=tuple(found),
        speculative=has_averaged,
        last_resort=2 * has_averaged,
    )


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
