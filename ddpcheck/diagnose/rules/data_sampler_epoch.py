"""A sampler gives the same order in every epoch.

What it means
A sampler gives the same order in every epoch.

Why it happens
The order is drawn from a seed and the epoch, and nobody tells the sampler the epoch:
set_epoch is not called, or the seed is the same each time.

How it was found
From some step on the ranks together train on samples of an earlier step, where one
process goes on to others. A run in which every permutation on the ranks is the one that
one process draws decides.

Example
    import torch
    import torch.distributed as dist
    from torch import nn
    torch.manual_seed(0)
    rows, model, epochs = torch.randn(32, 4), nn.Linear(4, 1), []
    batch = rows[:8], rows[:8]
    def shard(epoch, rank=0, world_size=1):
        generator = torch.Generator().manual_seed(epoch if world_size == 1 else 0)
        return rows[torch.randperm(32, generator=generator)[:8][rank::world_size]]
    def train_step(model, optimizer, batch):
        seat = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else ()
        optimizer.zero_grad()
        model(shard(len(epochs), *seat)).square().mean().backward()
        epochs.append(1)
        optimizer.step()

Fix
sampler.set_epoch(epoch) before every epoch, on all ranks. The example is mended by:

    def shard(epoch, rank=0, world_size=1):
        generator = torch.Generator().manual_seed(epoch)
        return rows[torch.randperm(32, generator=generator)[:8][rank::world_size]]

Not this rule if
Ranks have other samples than in the steps before: data/shard-overlap where they share
some. One process repeats the order too: then training is the same.

References
https://arxiv.org/abs/1706.02677
https://github.com/pytorch/pytorch/issues/31771
"""

from __future__ import annotations

from ddpcheck.diagnose.facts import rows
from ddpcheck.diagnose.facts.case import Case, Proposal

SLUG = "data/sampler-epoch"
LINK = "data"


def detect(case: Case) -> Proposal | None:
    """Proposes it where ranks train again on what they have trained on."""
    moment = None if case.run.faults else rows.first_wrong(case)
    if moment is None or not case.facts["has_train_step"]:
        return None
    known = rows.earlier(case, moment)
    if known is None or case.watched is None:
        return None
    same = "as one process does" if known.is_sound else "which are others already"
    return Proposal(
        slug=SLUG,
        link=LINK,
        summary="the ranks' samples come in the same order in every epoch: their sampler "
        "does not know the epoch",
        facts=(
            f"in step {moment.step + 1} the ranks train on the {len(moment.one)} samples "
            f"of step {known.step + 1} again, {same} there",
            f"samples of one process in step {moment.step + 1} that are on no rank: "
            f"{sum(moment.missing.values())}",
        ),
        fix="tell the sampler the epoch before every epoch, on all ranks",
        fixes=("target.orders",),
        evidence=rows.evidence(moment),
        # Else samples may be counted or chosen in another way, with no order at all.
        speculative=not case.watched.reference.facts["shuffles"],
        needs_no_proof=known.is_sound and case.watched.reference.facts["shuffles"],
    )
