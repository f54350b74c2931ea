"""Detects sync/rank-died."""

from __future__ import annotations

from ddpcheck.diagnose.facts import rank_fault
from ddpcheck.diagnose.facts.case import Case, Proposal
from ddpcheck.diagnose.facts.rank_table import named

SLUG = "sync/rank-died"
LINK = "reduce"  # the others wait there


def detect(case: Case) -> Proposal | None:
    """Proposes it if the first fault is a death."""
    fault = rank_fault.of(case, "died")
    if fault is None:
        return None
    return rank_fault.proposal(
        case,
        fault,
        slug=SLUG,
        link=LINK,
        summary=f"{named(fault.ranks)} {fault.first.summary}{fault.where}; the "
        "single-process run does not",
        fix=_fix(fault.first.summary),
    )


def _fix(summary: str) -> str:
    if "SIGKILL" in summary:
        return (
            "check whether the kernel killed it for lack of memory: see dmesg, or "
            "use a smaller W"
        )
    return "find what ends the rank's process; its output may say why"
