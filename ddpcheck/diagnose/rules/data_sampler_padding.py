"""Samples are repeated to fill the shards.

What it means
Samples are repeated to fill the shards.

Why it happens
A sampler that gives every rank as many samples repeats the first ones where the world
size does not divide their number: in that epoch they count twice.

How it was found
Every rank trains on as many samples; together they are those of one process, and some
more than once, at the end of a shard and at the beginning of another. Where torch's
DistributedSampler repeats them, a run in which repeats do not count decides.

Example
    import torch
    from torch import nn
    from torch.nn.functional import mse_loss
    from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
    torch.manual_seed(0)
    rows = torch.randn(9, 4)
    data = TensorDataset(rows, rows.sum(1, keepdim=True))
    batch = rows[:8], rows[:8]
    model = nn.Linear(4, 1)
    def shard(data, world_size, rank):
        return DistributedSampler(data, world_size, rank, shuffle=False)
    def train_step(model, optimizer, batch):
        group = torch.distributed
        seat = (1, 0)
        if group.is_initialized():
            seat = (group.get_world_size(), group.get_rank())
        for x, y in DataLoader(data, 9, sampler=shard(data, *seat)):
            optimizer.zero_grad()
            mse_loss(model(x), y).backward()
            optimizer.step()

Fix
drop_last=True where one process drops as many, or a weight of 0 for repeats. The
example is mended by:

    data = TensorDataset(rows[:8], rows[:8].sum(1, keepdim=True))

Not this rule if
Ranks share samples that fill no shard: data/shard-overlap.

References
https://github.com/pytorch/pytorch/issues/25162
https://github.com/pytorch/pytorch/issues/22584
"""

from __future__ import annotations

from ddpcheck.diagnose import rows
from ddpcheck.diagnose.case import Case, Proposal

SLUG = "data/sampler-padding"
LINK = "data"


def detect(case: Case) -> Proposal | None:
    """Proposes it where the ranks have one process's samples, and repeats besides."""
    moment = None if case.run.faults else rows.first_padded(case)
    if moment is None:
        return None
    repeats = sum(moment.repeated.values())
    return Proposal(
        slug=SLUG,
        link=LINK,
        summary="samples are repeated to give every rank as many: they count more than "
        "once",
        facts=(
            f"in step {moment.step + 1} one process trains on {len(moment.one)} samples, "
            f"the {len(moment.ranks)} ranks on {len(moment.ranks[0])} each; repeated at "
            f"the end of a shard, from the beginning of another: {repeats}",
        ),
        fix="drop the last samples in one process as well, or give repeats a weight of 0",
        code="DistributedSampler(data, drop_last=True)",
        fixes=("data.unpadded",),
        evidence=rows.evidence(moment),
        stands=True,
    )
