"""The loss puts the ranks' parts together in the wrong way."""

from __future__ import annotations

from ddpcheck.diagnose.case import Case, Proposal
from ddpcheck.diagnose.loss import global_loss_fix, ratio_evidence

SLUG = "collective/layout"
LINK = "loss"


def detect(case: Case) -> Proposal | None:
    """Proposes it where the loss is wrong even with the same shard on all ranks."""
    if case.step is None or not case.has_cuts or case.loss_is_sound:
        return None
    if (
        not case.loss_collectives
        or case.losses_replicate
        or case.uniform_ratio is not None
    ):
        return None
    tiled = case.arm(tile=case.world_size)
    alone = case.arm(world_size=1)
    if tiled.verdict != "divergent" and alone.verdict != "divergent":
        return None
    shown = []
    if alone.verdict == "divergent":
        shown.append(
            "it differs with one rank already, where there is nothing to reduce"
        )
    if tiled.verdict == "divergent":
        shown.append(
            "it differs with the same shard on every rank, where all counts agree"
        )
    return Proposal(
        slug=SLUG,
        link=LINK,
        summary="the loss puts what the ranks gathered together in another way than one "
        "process does: order, axis or labels",
        facts=(f"{case.loss_collectives} collectives called in one step", *shown),
        fix="fix the layout (labels offset by rank, cat or stack, order of views); test that "
        "one rank equals no group",
        code="labels = torch.arange(len(a)) + dist.get_rank() * len(a)",
        fixes=global_loss_fix(case),
        evidence=ratio_evidence(case),
    )
