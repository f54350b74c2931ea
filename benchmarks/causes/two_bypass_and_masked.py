# expect: loss/local-normalizer, ddp/forward-bypassed
"""Masked LM trained through model.module, mean over local mask count."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def world():
    return dist.get_world_size() if dist.is_initialized() else 1


def rank():
    return dist.get_rank() if dist.is_initialized() else 0


class MLM(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(20, 12)
        self.body = nn.TransformerEncoderLayer(12, 2, 24, dropout=0.0, batch_first=True)
        self.out = nn.Linear(12, 20)

    def encode(self, x):
        return self.body(self.embed(x))

    def forward(self, x):
        return self.out(self.encode(x))


def model():
    torch.manual_seed(0)
    return MLM()


def batch(step):
    g = torch.Generator().manual_seed(610 + step)
    tokens = torch.randint(1, 20, (16, 8), generator=g)
    masked = torch.rand(16, 8, generator=g) < torch.linspace(0.15, 0.6, 16)[:, None]
    return tokens.masked_fill(masked, 0), tokens.masked_fill(~masked, -100)


def loss(output, target):
    value = F.cross_entropy(
        output.flatten(0, 1), target.flatten(), ignore_index=-100, reduction="sum"
    )
    count = (target != -100).sum()
    return value / count


def train_step(model, optimizer, batch):
    optimizer.zero_grad()
    net = model.module if isinstance(model, DDP) else model
    value = loss(net.out(net.encode(batch[0])), batch[1])
    value.backward()
    optimizer.step()
