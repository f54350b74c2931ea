# expect: forward/batch-coupled
"""SAINT-like tabular model: attention over features, then over the rows of the batch."""

import torch
import torch.nn.functional as F
from torch import nn


class RowAttention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.q, self.kv, self.out = (
            nn.Linear(width, width),
            nn.Linear(width, 2 * width),
            nn.Linear(width, width),
        )

    def forward(self, x):
        rows = self.norm(x.flatten(1))
        kv = self.kv(rows)
        k, v = kv.chunk(2, 1)
        weight = (self.q(rows) @ k.T / k.shape[1] ** 0.5).softmax(-1)
        return x + self.out(weight @ v).view_as(x)


class Saint(nn.Module):
    def __init__(self, features=5, width=4):
        super().__init__()
        self.embed = nn.Parameter(torch.randn(features, 2, width) * 0.5)
        self.columns = nn.TransformerEncoderLayer(
            width, 2, 8, dropout=0.0, batch_first=True
        )
        self.rows = RowAttention(features * width)
        self.head = nn.Linear(features * width, 1)

    def forward(self, x):
        tokens = x.unsqueeze(-1) * self.embed[:, 0] + self.embed[:, 1]
        return self.head(self.rows(self.columns(tokens)).flatten(1)).squeeze(1)


def model():
    torch.manual_seed(0)
    return Saint()


def batch(step):
    g = torch.Generator().manual_seed(3 + step)
    x = torch.randn(16, 5, generator=g)
    return x, x[:, 0] * x[:, 1] + 0.1 * torch.randn(16, generator=g)


def loss(output, target):
    return F.huber_loss(output, target)
