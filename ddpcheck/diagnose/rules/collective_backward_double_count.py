"""A replicated loss behind a summing backward is counted W times."""

from __future__ import annotations

from ddpcheck.diagnose.case import Case, Proposal
from ddpcheck.diagnose.loss import ratio_evidence, ratio_fact

SLUG = "collective/backward-double-count"
LINK = "loss"


def detect(case: Case) -> Proposal | None:
    """Proposes it for replicated losses with a ratio of W * W on every rank."""
    ratio = case.uniform_ratio
    world = case.world_size
    if ratio is None or not case.losses_are_one or world == 1:
        return None
    if abs(ratio / world**2 - 1) > case.close:
        return None
    return Proposal(
        slug=SLUG,
        link=LINK,
        summary="every rank has the whole loss, and the backward of its collective sums "
        f"the gradients of all {world} ranks: every gradient is {world} times too large",
        facts=("every rank has the same loss: it is reduced already", ratio_fact(case)),
        fix="divide the reduced loss by the world size",
        code="loss = reduced_loss / dist.get_world_size()",
        fixes=(f"loss.scale:{1 / world!r}",),
        evidence=ratio_evidence(case),
    )
