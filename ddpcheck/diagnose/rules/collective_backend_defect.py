"""Detects collective/backend-defect."""

from __future__ import annotations

from ddpcheck.diagnose.facts.case import Case, Proposal
from ddpcheck.diagnose.facts.text import number
from ddpcheck.run.intervention import Switch

SLUG = "collective/backend-defect"
LINK = "loss"


def detect(case: Case) -> Proposal | None:
    """Proposes it if a collective did not return the result of its definition."""
    found = [defect for defect in case.defects() if defect.is_dense]
    if not found:
        return None
    only_reducer = all(defect.in_reducer for defect in found)
    return Proposal(
        link="reduce" if only_reducer else LINK,
        summary="a collective returns a wrong result",
        facts=tuple(
            f"{defect.what}: {number(defect.ratio)} times the right result, relative "
            f"difference {number(defect.rel_diff)}"
            for defect in found[:3]
        ),
        fix="compare the backend's collectives with their definition, upgrade the "
        "backend or use another one",
        fixes=(Switch.EXACT_COLLECTIVES,),
    )
