"""Detects data/sampler-padding."""

from __future__ import annotations

from ddpcheck.diagnose.facts import rows
from ddpcheck.diagnose.facts.case import Case, Proposal
from ddpcheck.run.intervention import Switch

SLUG = "data/sampler-padding"
LINK = "data"


def detect(case: Case) -> Proposal | None:
    """Proposes it if the ranks have the single-process samples, some of them repeated."""
    moment = None if case.run.faults else rows.first_padded(case)
    if moment is None:
        dropped = None if case.run.faults else rows.first_dropped(case)
        return None if dropped is None else _of_dropped(dropped)
    repeats = sum(moment.repeated.values())
    is_last = set(moment.repeated) == {moment.one[-1]}
    where = "the last of all" if is_last else "from the beginning of another shard"
    return Proposal(
        summary="samples are repeated to give every rank the same number: repeated "
        "samples count more than once",
        facts=(
            f"in step {moment.step + 1} the single-process run trains on "
            f"{len(moment.one)} samples, the {len(moment.ranks)} ranks on "
            f"{len(moment.ranks[0])} each; repeated at the end of a shard, {where}: "
            f"{repeats}",
        ),
        fix=(
            "drop the last samples in the single-process run as well, or give "
            "repeated samples a weight of 0"
        ),
        code="DistributedSampler(data, drop_last=True)",
        fixes=(Switch.LOADER_UNPADDED,),
        evidence=rows.evidence(moment),
        needs_no_proof=True,
    )


def _of_dropped(moment: rows.Moment) -> Proposal:
    """Returns the proposal for samples that no rank trains on."""
    lost = sum(moment.missing.values())
    return Proposal(
        summary=(
            "samples are dropped to give every rank the same number: no rank "
            "trains on them"
        ),
        facts=(
            f"in step {moment.step + 1} the single-process run trains on "
            f"{len(moment.one)} samples, the {len(moment.ranks)} ranks on "
            f"{len(moment.ranks[0])} each; on no rank: {lost}",
        ),
        fix="keep them, and weight each rank's mean by its number of samples; or "
        "drop them in the single-process run as well",
        evidence=rows.evidence(moment),
        needs_no_proof=True,
    )
