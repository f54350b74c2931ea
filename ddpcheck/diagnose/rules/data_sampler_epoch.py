"""Detects data/sampler-epoch."""

from __future__ import annotations

from ddpcheck.diagnose.facts import rows
from ddpcheck.diagnose.facts.case import Case, Proposal

SLUG = "data/sampler-epoch"
LINK = "data"


def detect(case: Case) -> Proposal | None:
    """Proposes it where ranks train again on what they have trained on."""
    moment = None if case.run.faults else rows.first_wrong(case)
    if moment is None or not case.facts["has_train_step"]:
        return None
    known = rows.earlier(case, moment)
    if known is None or case.watched is None:
        return None
    same = "as one process does" if known.is_sound else "which are others already"
    return Proposal(
        slug=SLUG,
        link=LINK,
        summary="the ranks' samples come in the same order in every epoch: their sampler "
        "does not know the epoch",
        facts=(
            f"in step {moment.step + 1} the ranks train on the {len(moment.one)} samples "
            f"of step {known.step + 1} again, {same} there",
            f"samples of one process in step {moment.step + 1} that are on no rank: "
            f"{sum(moment.missing.values())}",
        ),
        fix="tell the sampler the epoch before every epoch, on all ranks",
        fixes=("target.orders",),
        evidence=rows.evidence(moment),
        # Else samples may be counted or chosen in another way, with no order at all.
        speculative=not case.watched.reference.facts["shuffles"],
        needs_no_proof=known.is_sound and case.watched.reference.facts["shuffles"],
    )
