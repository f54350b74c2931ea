"""Detects sync/no-sync-scope."""

from __future__ import annotations

from ddpcheck.diagnose.facts.case import Case, Proposal
from ddpcheck.diagnose.facts.events import (
    accumulates,
    ends_unsynchronised,
    has_no_reduction,
    is_torn,
)
from ddpcheck.diagnose.proposal import replaced
from ddpcheck.run.intervention import Switch

SLUG = "sync/no-sync-scope"
LINK = "reduce"


def detect(case: Case) -> Proposal | None:
    """Proposes it if no_sync covers gradients whose mean the step needs."""
    events = [f.get("events", "") for f in case.ranks]
    if not events or "[" not in events[0]:
        return None
    order = (
        "order of DDP forwards (F), backwards (B) and no_sync ( [ ] ): "
        f"{events[0][:32]}"
    )
    return (
        _detect_split_pair(case, order)
        if is_torn(events[0])
        else _detect_whole_step(case, events[0], order)
    )


def _detect_split_pair(case: Case, order: str) -> Proposal | None:
    """Proposes it if only one of a forward and its backward is inside no_sync."""
    if not case.reduce_is_broken:
        return None
    return Proposal(
        summary="no_sync covers a forward without its backward, or the reverse; DDP reads "
        "the flag in forward, and the last forward decides",
        facts=(order,),
        fix="put forward and backward of a micro-batch inside, and both of the "
        "last micro-batch outside",
        code="with model.no_sync():\n    criterion(model(x), y).backward()",
        code_rests_on=(
            "a forward is inside no_sync and its backward is outside, or the reverse"
        ),
        by_hand=True,
    )


def _detect_whole_step(case: Case, events: str, order: str) -> Proposal | None:
    """Proposes it if forwards and backwards are inside together."""
    # sync/static-graph-no-sync: the reducer raised, and reduced nothing
    if case.run.faults and any(f.get("static_graph") for f in case.ranks):
        return None
    if ends_unsynchronised(events) and has_no_reduction(events):
        return None if _is_made_up_for(case) else _covers_all(order)
    if ends_unsynchronised(events) and accumulates(events):
        return None  # sync/no-sync-off-by-one
    used = _detect_used_while_local(order)
    # If DDP waits for parameters that a backward leaves out, it cannot reduce all.
    is_mended = case.by_hand.verdict == "equivalent"
    by_hand = replaced(used, fixes=(), by_hand=True)
    return replaced(used, fallback=by_hand) if is_mended else used


def _is_made_up_for(case: Case) -> bool:
    """Returns whether the step itself reduces the gradients that no_sync covers."""
    return case.run.ranks_agree or not case.reduce_is_broken


def _covers_all(order: str) -> Proposal:
    return Proposal(
        summary="no_sync covers every backward of a step: DDP reduces none of its gradients",
        facts=(order,),
        fix="put the forward and the backward of the last micro-batch outside",
        code="with model.no_sync() if i + 1 < k else nullcontext():\n"
        "    criterion(model(x), y).backward()",
        code_rests_on="every backward of a step is within no_sync",
        by_hand=True,
    )


def _detect_used_while_local(order: str) -> Proposal:
    """Proposes it for gradients that the step reads inside; a run without confirms it.

    Examples are a step towards higher loss (SAM), a norm: gradients that only
    accumulate are reduced later.
    """
    return Proposal(
        summary="the step uses the gradient of a backward inside no_sync, which is "
        "the local gradient: DDP reduces it only with the next backward outside",
        facts=(order,),
        fix="remove no_sync where gradients are used before the next backward",
        code="criterion(model(x), y).backward()  # not within model.no_sync()",
        fixes=(Switch.ALWAYS_SYNC,),
        speculative=True,
    )
