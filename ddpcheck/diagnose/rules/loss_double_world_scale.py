"""A mean over the shard multiplied by the world size."""

from __future__ import annotations

from ddpcheck.diagnose.case import Case, Proposal
from ddpcheck.diagnose.loss import ratio_evidence, ratio_fact

SLUG = "loss/double-world-scale"
LINK = "loss"


def detect(case: Case) -> Proposal | None:
    """Proposes it for a ratio of W * W on every rank, the losses not replicated."""
    ratio = case.uniform_ratio
    world = case.world_size
    if ratio is None or world == 1 or abs(ratio / world**2 - 1) > case.close:
        return None
    if case.losses_are_one:
        return None
    return Proposal(
        slug=SLUG,
        link=LINK,
        summary=f"the loss is a mean over the shard and multiplied by {world} as well: "
        f"every gradient is {world} times one process's",
        facts=(ratio_fact(case),),
        fix="remove the factor; it belongs to a sum over a global count only",
        code="loss = criterion(output, target)  # without * world_size",
        fixes=(f"loss.scale:{1 / world!r}",),
        evidence=ratio_evidence(case),
    )
