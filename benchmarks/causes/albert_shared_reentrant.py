# expect: graph/shared-parameter or graph/reentrant-checkpoint
"""ALBERT: one layer applied three times, each under a reentrant checkpoint: marked ready twice."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn


def world():
    return dist.get_world_size() if dist.is_initialized() else 1


def rank():
    return dist.get_rank() if dist.is_initialized() else 0


from torch.utils.checkpoint import checkpoint


class Albert(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(20, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.head = nn.Linear(8, 20)

    def forward(self, tokens):
        x = self.embed(tokens)
        for _ in range(3):
            x = checkpoint(self.layer, x, use_reentrant=True)
        return self.head(x)


def model():
    torch.manual_seed(0)
    return Albert()


def batch(step):
    g = torch.Generator().manual_seed(440 + step)
    tokens = torch.randint(0, 20, (16, 6), generator=g)
    return tokens, tokens


def loss(output, target):
    return F.cross_entropy(output.flatten(0, 1), target.flatten())
