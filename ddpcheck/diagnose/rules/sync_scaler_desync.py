"""The ranks scale their losses differently."""

from __future__ import annotations

import math

from ddpcheck.diagnose import events
from ddpcheck.diagnose.case import Case, Proposal
from ddpcheck.diagnose.text import number

SLUG = "sync/scaler-desync"
LINK = "reduce"


def detect(case: Case) -> Proposal | None:
    """Proposes it where the ranks' gradients differ by one power of two."""
    step = case.first_broken("gradients")
    if not case.reduce_is_broken or step is None:
        return None
    factor = events.factor_between_ranks(case, "gradients", step)
    if factor is None or abs(math.log2(factor) - round(math.log2(factor))) > case.close:
        return None
    return Proposal(
        slug=SLUG,
        link=LINK,
        summary="the ranks have different loss scales: scaled gradients are averaged, and "
        "each rank divides by its own scale",
        facts=(
            f"in step {step + 1} all gradients of one rank are {number(factor)} times "
            "those of another, a power of two",
        ),
        fix="one scale for all ranks: reduce what it is decided by",
        code="dist.all_reduce(found_inf, op=dist.ReduceOp.MAX)",
    )
