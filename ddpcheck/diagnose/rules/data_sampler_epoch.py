"""Detects data/sampler-epoch."""

from __future__ import annotations

from ddpcheck.diagnose.facts import rows
from ddpcheck.diagnose.facts.case import Case, Proposal
from ddpcheck.run.intervention import Substitute

SLUG = "data/sampler-epoch"
LINK = "data"


def detect(case: Case) -> Proposal | None:
    """Proposes it if ranks train again on samples of an earlier step."""
    moment = None if case.run.faults else rows.first_wrong(case)
    if moment is None or not case.facts["has_train_step"]:
        return None
    known = rows.earlier(case, moment)
    if known is None or case.watched is None:
        return None
    same = (
        "as the single-process run does"
        if known.is_sound
        else ("where they already differ from the single-process run")
    )
    return Proposal(
        summary="the ranks' samples come in the same order in every epoch: the "
        "sampler's epoch is not set",
        facts=(
            f"in step {moment.step + 1} the ranks train on the {len(moment.one)} "
            f"samples of step {known.step + 1} again, {same}",
            f"samples of the single-process run in step {moment.step + 1} that are "
            f"on no rank: {sum(moment.missing.values())}",
        ),
        fix="call sampler.set_epoch(epoch) before every epoch, on all ranks",
        fixes=(Substitute(boundary="orders"),),
        evidence=rows.evidence(moment),
        # Otherwise samples may be chosen in another way, without an order.
        speculative=not case.watched.reference.facts["shuffles"],
        needs_no_proof=known.is_sound and case.watched.reference.facts["shuffles"],
    )
