"""Ranks call different collectives."""

from __future__ import annotations

from ddpcheck.diagnose.case import Case, Proposal
from ddpcheck.diagnose.faults import collectives_of_ranks
from ddpcheck.diagnose.text import listed

SLUG = "sync/collective-mismatch"
LINK = "reduce"


def detect(case: Case) -> Proposal | None:
    """Proposes it where the numbers of collectives differ between ranks."""
    calls = collectives_of_ranks(case)
    if not calls or len(set(calls)) == 1:
        return None
    return Proposal(
        slug=SLUG,
        link=LINK,
        summary="the ranks do not call the same collectives: one meets another of the other "
        "ranks",
        facts=(
            f"collectives called by the target until then, per rank: {listed(calls)}",
            *[f"rank {f.rank}: {f.summary}" for f in case.run.faults[:3]],
        ),
        fix="call the same collectives in the same order on all ranks, with a zero where a "
        "rank has nothing to add",
        code="dist.all_reduce(count)  # outside any condition on the rank's own data",
    )
