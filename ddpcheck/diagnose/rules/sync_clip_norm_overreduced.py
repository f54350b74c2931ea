"""The clip norm of reduced gradients is reduced again."""

from __future__ import annotations

import math

from ddpcheck.diagnose.case import Case, Proposal
from ddpcheck.diagnose.events import common_factor
from ddpcheck.diagnose.text import number

SLUG = "sync/clip-norm-overreduced"
LINK = "update"


def detect(case: Case) -> Proposal | None:
    """Proposes it where all final gradients have the factor 1 / sqrt(W)."""
    if not case.loss_is_sound or case.diverging() or case.world_size == 1:
        return None
    factor = common_factor(case)
    if factor is None or abs(factor * math.sqrt(case.world_size) - 1) > case.close:
        return None
    return Proposal(
        slug=SLUG,
        link=LINK,
        summary="gradients are clipped by a norm that was summed over ranks, though DDP had "
        "averaged the gradients already: the norm is sqrt(W) too large",
        facts=(
            "outputs and the loss's gradient at them are right; at the optimizer's step "
            f"every gradient is {number(factor)} times one process's, which is "
            f"1 / sqrt({case.world_size})",
        ),
        fix="use the local norm: after DDP all ranks have the same gradients",
        code="torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)",
        fixes=("collectives.off_after_backward",),
    )
