"""Detects data/uneven-batches."""

from __future__ import annotations

from ddpcheck.diagnose.facts import rank_table, rows
from ddpcheck.diagnose.facts.case import Case, Proposal
from ddpcheck.diagnose.facts.faults import backwards_of_ranks, busy_ranks, skipped_in
from ddpcheck.diagnose.facts.text import listed
from ddpcheck.run.intervention import Switch

SLUG = "data/uneven-batches"
LINK = "data"


def detect(case: Case) -> Proposal | None:
    """Proposes it if a rank has used all its batches, and another has more."""
    step = skipped_in(case)
    if step is None or not backwards_of_ranks(case) or busy_ranks(case.run):
        return None
    if not rows.are_used_up(case, step):
        return None
    counts = rows.calls_of_ranks(case, step)
    return Proposal(
        summary="ranks have different numbers of batches: those with more wait for "
        "gradients that the others do not have",
        facts=(
            f"batches started in step {step + 1}, per rank: {listed(counts)}; a "
            "rank that has fewer has used all samples of its shard",
            *rank_table.facts(case),
        ),
        fix=(
            "give all ranks the same number of batches, the last ones empty or "
            "with the loss multiplied by 0"
        ),
        code="with model.join():  # for batches with an update each",
        fixes=(Switch.EMPTY_BATCHES,),
        evidence={"ranks": rank_table.rows(case)},
        needs_no_proof=True,
    )
