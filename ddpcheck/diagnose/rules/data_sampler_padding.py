"""Samples are repeated, or left out, to make the shards equal.

What it means
Samples are repeated to fill the shards, or left out.

Why it happens
A sampler that gives every rank as many samples repeats the first ones, or the last,
where the world size does not divide their number: in that epoch they count twice. Or
it leaves the last few out, which no rank trains on then.

How it was found
Every rank trains on as many samples; together they are those of one process, and some
more than once, at the end of a shard and at the beginning of another; or fewer than
there are ranks are on none. Where torch's DistributedSampler repeats them, a run in
which repeats do not count decides.

Example
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.utils.data import DataLoader, DistributedSampler
    torch.manual_seed(0)
    model, rows = nn.Linear(4, 1), torch.randn(9, 4)
    batch = rows[:8], rows[:8]
    def train_step(model, optimizer, batch):
        ranks = dist.is_initialized()
        sampler = DistributedSampler(rows, shuffle=False) if ranks else None
        for x in DataLoader(rows, 9, sampler=sampler):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()

Fix
drop_last=True where one process drops as many, or a weight of 0 for repeats. The
example is mended by:

    rows = rows[:8]

Not this rule if
Ranks share samples that fill no shard: data/shard-overlap.

References
https://github.com/pytorch/pytorch/issues/25162
https://github.com/pytorch/pytorch/issues/22584
"""

from __future__ import annotations

from ddpcheck.diagnose.facts import rows
from ddpcheck.diagnose.facts.case import Case, Proposal

SLUG = "data/sampler-padding"
LINK = "data"


def detect(case: Case) -> Proposal | None:
    """Proposes it where the ranks have one process's samples, and repeats besides."""
    moment = None if case.run.faults else rows.first_padded(case)
    if moment is None:
        dropped = None if case.run.faults else rows.first_dropped(case)
        return None if dropped is None else _of_dropped(dropped)
    repeats = sum(moment.repeated.values())
    is_last = set(moment.repeated) == {moment.one[-1]}
    where = "the last of all" if is_last else "from the beginning of another"
    return Proposal(
        slug=SLUG,
        link=LINK,
        summary="samples are repeated to give every rank as many: they count more than "
        "once",
        facts=(
            f"in step {moment.step + 1} one process trains on {len(moment.one)} samples, "
            f"the {len(moment.ranks)} ranks on {len(moment.ranks[0])} each; repeated at "
            f"the end of a shard, {where}: {repeats}",
        ),
        fix="drop the last samples in one process as well, or give repeats a weight of 0",
        code="DistributedSampler(data, drop_last=True)",
        fixes=("data.unpadded",),
        evidence=rows.evidence(moment),
        needs_no_proof=True,
    )


def _of_dropped(moment: rows.Moment) -> Proposal:
    """Returns the proposal for samples that no rank trains on."""
    lost = sum(moment.missing.values())
    return Proposal(
        slug=SLUG,
        link=LINK,
        summary="samples are left out to give every rank as many: no rank trains on them",
        facts=(
            f"in step {moment.step + 1} one process trains on {len(moment.one)} samples, "
            f"the {len(moment.ranks)} ranks on {len(moment.ranks[0])} each; on no rank: "
            f"{lost}",
        ),
        fix="keep them, and weigh each rank's mean by its samples; or leave them out in one "
        "process as well",
        evidence=rows.evidence(moment),
        needs_no_proof=True,
    )
