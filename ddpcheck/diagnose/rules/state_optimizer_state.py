"""Detects state/optimizer-state."""

from __future__ import annotations

from ddpcheck.diagnose.facts import unlike
from ddpcheck.diagnose.facts.case import Case, Proposal

SLUG = "state/optimizer-state"
LINK = "update"
_SHOWN = 3


def detect(case: Case) -> Proposal | None:
    """Proposes it if the optimizer's state differs before the first update."""
    found = [it for it in unlike.first_states(case) if it.state.update == 0]
    if not found or case.run.faults:
        return None
    return Proposal(
        summary="an optimizer on ranks starts with another state than in the "
        "single-process run, so equal gradients make another update",
        facts=tuple(it.text for it in found[:_SHOWN]),
        fix="create or restore the same state on every rank and in one process; take "
        "no step to allocate it",
    )
