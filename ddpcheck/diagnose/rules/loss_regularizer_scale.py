"""A data-independent term has the data term's factor."""

from __future__ import annotations

from ddpcheck.diagnose.case import Case, Proposal
from ddpcheck.diagnose.loss import global_loss_fix
from ddpcheck.diagnose.text import listed

SLUG = "loss/regularizer-scale"
LINK = "loss"


def detect(case: Case) -> Proposal | None:
    """Proposes it where the data term is right and parameters' own terms are not."""
    if case.step is None or not case.loss_is_sound or case.world_size == 1:
        return None
    direct = case.direct()
    if not direct or case.direct_is_sound:
        return None
    first = direct[0][0]
    same = all(
        residual <= case.close and abs(ratio - first) <= case.close * abs(first)
        for ratio, residual in direct
    )
    if not same or not first:
        return None
    return Proposal(
        slug=SLUG,
        link=LINK,
        summary="a term of the loss that every rank has in full (a penalty on the "
        "weights) is scaled like the data term",
        facts=(
            "the gradient at the outputs is right on every rank",
            "the gradient that parameters get from the loss directly is "
            f"{listed(ratio for ratio, _ in direct)} times one process's, expected 1",
        ),
        fix="multiply the data term alone by the world size",
        code="loss = dist.get_world_size() * data_term + penalty",
        fixes=(f"direct.scale:{1 / first!r}",),
        evidence={"direct_ratios": [ratio for ratio, _ in direct]},
    )


__all__ = ["LINK", "SLUG", "detect", "global_loss_fix"]
