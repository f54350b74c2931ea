"""Detects graph/skipped-backward."""

from __future__ import annotations

from ddpcheck.diagnose.facts import rank_table, rows
from ddpcheck.diagnose.facts.case import Case, Proposal
from ddpcheck.diagnose.facts.events import optimizer_runs_backwards
from ddpcheck.diagnose.facts.faults import (
    backwards_of_ranks,
    busy_ranks,
    skipped_in,
)
from ddpcheck.diagnose.facts.text import in_group, listed
from ddpcheck.diagnose.proposal import tried
from ddpcheck.run.intervention import Switch

SLUG = "graph/skipped-backward"
LINK = "reduce"


def detect(case: Case) -> Proposal | None:
    """Proposes it if a rank skipped a backward and another waits."""
    calls = backwards_of_ranks(case)
    if not calls or busy_ranks(case.run) or optimizer_runs_backwards(case):
        return None
    step = skipped_in(case)
    if step is None or rows.are_used_up(case, step):
        return None  # stopped before its backward, or without a batch left
    found = Proposal(
        summary="a rank skips a backward that the others run: they wait for its "
        "gradients, or receive those of its next step",
        facts=(
            f"backwards started until then, per rank: {listed(calls)}",
            *rank_table.facts(case),
        ),
        fix="make the decision on all ranks together, or multiply the loss by 0",
        code=in_group("dist.all_reduce(skip, dist.ReduceOp.MAX)")
        + "\nif not skip:  # all decide alike\n    loss.backward()",
        evidence={"ranks": rank_table.rows(case)},
        needs_no_proof=True,
    )
    # The mean of a few counts may be rounded to 0.
    return tried(found, [(Switch.MEAN_OF_NUMBERS,), (Switch.SUM_OF_NUMBERS,)])
