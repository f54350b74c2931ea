"""Detects sync/rank-hung."""

from __future__ import annotations

from ddpcheck.diagnose.facts import faults, rank_fault
from ddpcheck.diagnose.facts.case import Case, Proposal
from ddpcheck.diagnose.facts.rank_table import named

SLUG = "sync/rank-hung"
LINK = "reduce"  # the others wait there


def detect(case: Case) -> Proposal | None:
    """Proposes it if ranks wait, and none raised or died."""
    fault = rank_fault.of(case, "hung")
    if fault is None:
        return None
    who, one = f"{named(fault.ranks)} hangs", "does not wait"
    if len(fault.ranks) == len(case.outcome.ranks):
        who = "every rank waits for the others"
        if set(fault.ranks) <= set(faults.busy_ranks(case.run)):
            who, one = "every rank is computing", "is done"
    return rank_fault.proposal(
        case,
        fault,
        slug=SLUG,
        link=LINK,
        summary=f"{who}{fault.where}; the single-process run {one}",
        fix="see what the rank waits for there; if it is only slow, raise --timeout-s",
    )
