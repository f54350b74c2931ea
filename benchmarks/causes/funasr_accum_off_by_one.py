# expect: sync/no-sync-off-by-one
"""FunASR PR 3472: no_sync when batch_idx % accum != 0, step when (batch_idx + 1) % accum == 0."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def world():
    return dist.get_world_size() if dist.is_initialized() else 1


def rank():
    return dist.get_rank() if dist.is_initialized() else 0


from contextlib import nullcontext


class ASR(nn.Module):
    def __init__(self):
        super().__init__()
        self.sub = nn.Conv1d(6, 12, 3, stride=2)
        self.rnn = nn.GRU(12, 12, batch_first=True)
        self.out = nn.Linear(12, 7)

    def forward(self, feats):
        return self.out(self.rnn(self.sub(feats.transpose(1, 2)).transpose(1, 2))[0])


def model():
    torch.manual_seed(0)
    return ASR()


def batch(step):
    g = torch.Generator().manual_seed(480 + step)
    return torch.randn(16, 15, 6, generator=g), torch.randint(
        1, 7, (16, 3), generator=g
    )


def loss(output, target):
    logp = output.log_softmax(-1).transpose(0, 1)
    n = len(target)
    lengths = torch.full((n,), logp.shape[0]), torch.full((n,), target.shape[1])
    return F.ctc_loss(logp, target, *lengths, reduction="sum", zero_infinity=True) / n


def train_step(model, optimizer, batch, accum_grad=4):
    for batch_idx, (x, y) in enumerate(
        zip(batch[0].chunk(accum_grad), batch[1].chunk(accum_grad))
    ):
        context = nullcontext
        if isinstance(model, DDP):
            context = nullcontext if batch_idx % accum_grad == 0 else model.no_sync
        with context():
            (loss(model(x), y) / accum_grad).backward()
        if (batch_idx + 1) % accum_grad == 0:
            nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            optimizer.step()
            optimizer.zero_grad()
