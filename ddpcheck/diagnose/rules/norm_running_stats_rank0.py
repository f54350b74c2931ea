"""Running statistics are each rank's own.

What it means
Running statistics come from one rank's shards.

Why it happens
Statistics of the batch may be synchronised and the running ones updated from the
shard: DDP sends rank 0's before each forward, and nobody merges them. Training is
right, evaluation and checkpoints are not.

How it was found
After the first step buffers of a normalising module differ from the reference's,
while all outputs of that step are right, or gradients are in all steps: nothing that
is trained takes what it returns. The run in which it sees the rows of all ranks
decides.

Example
    import torch
    import torch.distributed as dist
    import torch.distributed.nn.functional as dnn
    from torch import nn
    torch.manual_seed(0)
    class SyncNorm(nn.BatchNorm1d):
        def forward(self, x):
            sums = torch.stack([x.mean(0), x.square().mean(0)])
            self.running_mean.lerp_(sums[0].detach(), 0.1)
            if dist.is_initialized():
                sums = dnn.all_reduce(sums) / dist.get_world_size()
            return (x - sums[0]) * (sums[1] - sums[0].square() + 1e-5).rsqrt()
    model = nn.Sequential(SyncNorm(4, affine=False), nn.Linear(4, 3))
    batch = torch.randn(8, 4), torch.arange(8) % 3
    loss = nn.CrossEntropyLoss()

Fix
Update the running statistics from what was reduced. The example is mended by:

    class MergedNorm(SyncNorm):
        def forward(self, x):
            sums = torch.stack([x.mean(0), x.square().mean(0)])
            if dist.is_initialized():
                sums = dnn.all_reduce(sums) / dist.get_world_size()
            self.running_mean.lerp_(sums[0].detach(), 0.1)
            return (x - sums[0]) * (sums[1] - sums[0].square() + 1e-5).rsqrt()
    model = nn.Sequential(MergedNorm(4, affine=False), model[1])

Not this rule if
Its outputs differ too, and gradients with them: norm/local-batch-stats.

References
https://github.com/pytorch/pytorch/issues/1051
https://github.com/pytorch/pytorch/issues/13711
"""

from __future__ import annotations

from ddpcheck.diagnose.facts.buffers import diverging_buffers
from ddpcheck.diagnose.facts.case import Case, Proposal

SLUG = "norm/running-stats-rank0"
LINK = "update"


def detect(case: Case) -> Proposal | None:
    """Proposes it for batch norms whose buffers differ and outputs do not."""
    owner = diverging_buffers(case, batch_norm=True)
    if owner is None:
        return None
    return Proposal(
        slug=SLUG,
        link=LINK,
        summary="running statistics are updated from the rank's own shard"
        + (
            "; before each forward rank 0's overwrite the others: evaluation uses rank "
            "0's data alone"
            if owner.are_broadcast
            else ", and DDP does not send them: every rank evaluates with its own data's"
        ),
        facts=owner.facts,
        fix="update running statistics from the moments of all ranks, or merge them before "
        "evaluation and checkpoints",
        fixes=tuple(f"module.global:{name}" for name in owner.modules)
        if owner.written_in_forward
        else (f"state.one_process:{','.join(owner.modules)}",),
        module=owner.modules[0],
    )
