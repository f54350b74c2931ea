"""Untrained weights are updated differently on the ranks."""

from __future__ import annotations

from ddpcheck.diagnose.case import Case, Proposal
from ddpcheck.diagnose.text import names

SLUG = "state/ema-teacher-divergence"
LINK = "update"


def detect(case: Case) -> Proposal | None:
    """Proposes it where only untrained parameters differ, and no forward writes them."""
    if any(m.writes_parameters for m in case.modules()) or case.run.ranks_agree:
        return None
    rows = [
        t
        for q in case.step_quantity("weights", 0)
        for t in q.tensors
        if t.excess * case.outcome.spec.rtol > case.rtol
    ]
    untrained = set(case.facts["untrained"])
    found = list(dict.fromkeys(t.name for t in rows))
    if not found or not set(found) <= untrained:
        return None
    return Proposal(
        slug=SLUG,
        link=LINK,
        summary="weights that no optimizer trains (an average, a teacher) are updated on "
        "some ranks only, or from the rank's own data",
        facts=(
            f"after the first step {len(found)} untrained parameters differ between ranks: "
            f"{names(found)}; all trained ones are equal",
        ),
        fix="make the same update on all ranks",
        code="update_teacher(teacher, student)  # not under `if rank == 0`",
        fixes=("state.broadcast",),
    )
