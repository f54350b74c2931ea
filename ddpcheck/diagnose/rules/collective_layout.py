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
    shown = _seen_without_counts(case)
    if not shown and not case.couples:
        return None
    # With all counts equal the loss is right: labels may still point at the rows of
    # another rank, which only the run with shifted labels can tell.
    return Proposal(
        slug=SLUG,
        link=LINK,
        summary="the loss puts what the ranks gathered together in another way than one "
        "process does: order, axis or labels",
        facts=(
            f"{case.loss_collectives} collectives called in one step",
            *(shown or ["with labels counted from the rank's first row it is right"]),
        ),
        fix="fix the layout (labels offset by rank, cat or stack, order of views); test that "
        "one rank equals no group",
        code="labels = torch.arange(len(a)) + dist.get_rank() * len(a)",
        fixes=global_loss_fix(case) if shown else ("collectives.label_offset",),
        speculative=not shown,
        evidence=ratio_evidence(case),
    )


def _seen_without_counts(case: Case) -> list[str]:
    """Returns in which arms it differs though all ranks count the same."""
    shown = []
    if case.arm(world_size=1).verdict == "divergent":
        shown.append(
            "it differs with one rank already, where there is nothing to reduce"
        )
    if case.arm(tile=case.world_size).verdict == "divergent":
        shown.append(
            "it differs with the same shard on every rank, where all counts agree"
        )
    return shown
