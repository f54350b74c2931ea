# expect: loss/local-normalizer or loss/accum-normalizer, sync/no-sync-off-by-one
"""Wrong micro-batch synchronised, and the token mean is local."""

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


class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(20, 12)
        self.rnn = nn.GRU(12, 12, batch_first=True)
        self.out = nn.Linear(12, 20)

    def forward(self, x):
        return self.out(self.rnn(self.embed(x))[0])


def model():
    torch.manual_seed(0)
    return LM()


def batch(step):
    g = torch.Generator().manual_seed(630 + step)
    tokens = torch.randint(0, 20, (16, 8), generator=g)
    labels = tokens.roll(-1, 1).masked_fill(
        torch.arange(8)[None] >= torch.randint(2, 9, (16, 1), generator=g), -100
    )
    return tokens, labels


def loss(output, target):
    return F.cross_entropy(output.flatten(0, 1), target.flatten())


def train_step(model, optimizer, batch, k=2):
    optimizer.zero_grad()
    count = (batch[1] != -100).sum()
    for i, (x, y) in enumerate(zip(batch[0].chunk(k), batch[1].chunk(k))):
        last = i % k == 0
        with model.no_sync() if isinstance(model, DDP) and not last else nullcontext():
            value = (
                F.cross_entropy(model(x).flatten(0, 1), y.flatten(), reduction="sum")
                / count
            )
            value.backward()
    optimizer.step()
