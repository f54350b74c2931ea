"""Samples that belong together lie in different shards."""

from __future__ import annotations

from ddpcheck.diagnose.case import Case, Proposal

SLUG = "data/batch-layout"
LINK = "data"


def detect(case: Case) -> Proposal | None:
    """Proposes strided shards where the loss or a module relates samples."""
    if case.world_size == 1 or case.run.faults or case.loss_collectives:
        return None
    if not case.couples and not case.diverging():
        return None
    if len(set(case.run.shard_sizes)) > 1:
        return None
    world = case.world_size
    return Proposal(
        slug=SLUG,
        link=LINK,
        summary="dimension 0 of the batch has a structure, such as two views one after "
        "the other, and contiguous shards tear apart what belongs together",
        facts=(
            "the loss relates samples to each other",
            f"shards of every {world}th sample keep what belongs together: with them "
            "the ranks train as one process does",
        ),
        fix="shard by group, or give each view a tensor of its own",
        code="x = torch.stack(x.chunk(num_views), dim=1)  # dimension 0: the sample",
        fixes=("data.strided",),
        speculative=True,
    )
