"""Detects sync/rank-raised."""

from __future__ import annotations

from ddpcheck.diagnose.facts import rank_fault
from ddpcheck.diagnose.facts.case import Case, Proposal
from ddpcheck.diagnose.facts.rank_table import named

SLUG = "sync/rank-raised"
LINK = "reduce"  # the others wait there
_FIX = (
    "make this code work on every rank: with its shard, its rank number and the "
    "wrapped model"
)
_OF_INNER = (
    "the wrapper has no {name}: read getattr(model, 'module', model).{name}; calls "
    "in training must go through the wrapped model"
)


def detect(case: Case) -> Proposal | None:
    """Proposes it if the first fault is an exception."""
    fault = rank_fault.of(case, "raised")
    if fault is None:
        return None
    name, kind = case.ranks[0].get("lacks", ("", ""))
    return rank_fault.proposal(
        case,
        fault,
        slug=SLUG,
        link=LINK,
        summary=f"{named(fault.ranks)} {rank_fault.verb(fault, 'raise')} "
        f"{rank_fault.message(fault)}{fault.where}; the single-process run does not",
        fix=_FIX if kind in ("", "call") else _OF_INNER.format(name=name),
    )
