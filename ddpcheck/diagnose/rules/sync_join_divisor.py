"""Detects sync/join-divisor."""

from __future__ import annotations

from ddpcheck.diagnose.facts.case import Case, Proposal
from ddpcheck.diagnose.facts.text import listed
from ddpcheck.run.intervention import Switch

SLUG = "sync/join-divisor"
LINK = "reduce"


def detect(case: Case) -> Proposal | None:
    """Proposes the other divisor where ranks join early."""
    batches = [f.get("events", "").count("F") for f in case.ranks]
    joins = {flag for f in case.ranks for flag in f.get("joins", [])}
    if len(joins) != 1 or len(set(batches)) < 2:  # noqa: PLR2004
        return None
    (counts_all,) = joins
    return Proposal(
        summary="join divides gradients by the number of all ranks, including "
        "ranks without data left"
        if counts_all
        else "join divides gradients by the number of ranks with data left, but "
        "the loss already accounts for all ranks",
        facts=(
            f"join was entered with divide_by_initial_world_size={counts_all}",
            f"batches in all steps, per rank: {listed(batches)}",
        ),
        fix="divide by the number of ranks that still have data"
        if counts_all
        else (
            "divide by the number of all ranks: the loss is already multiplied by it"
        ),
        code=f"model.join(divide_by_initial_world_size={not counts_all})",
        fixes=(
            Switch.JOIN_DIVIDES_BY_LEFT if counts_all else Switch.JOIN_DIVIDES_BY_ALL,
        ),
    )
