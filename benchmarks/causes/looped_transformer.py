# expect: graph/shared-parameter or graph/reentrant-checkpoint
"""Looped (weight-shared) transformer with activation checkpointing."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

REENTRANT = True


class Block(nn.Module):
    def __init__(self, width, heads=2):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.fc1, self.fc2 = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x):
        q, k, v = (
            self.qkv(self.norm1(x))
            .unflatten(-1, (3, self.heads, -1))
            .permute(2, 0, 3, 1, 4)
        )
        h = (
            F.scaled_dot_product_attention(q, k, v, is_causal=True)
            .transpose(1, 2)
            .flatten(2)
        )
        x = x + self.proj(h)
        return x + self.fc2(F.gelu(self.fc1(self.norm2(x))))


class LoopedLM(nn.Module):
    def __init__(self, vocab=12, width=12, length=8, loops=3):
        super().__init__()
        self.tokens, self.positions = (
            nn.Embedding(vocab, width),
            nn.Parameter(torch.randn(length, width) * 0.1),
        )
        self.block, self.loops = Block(width), loops
        self.norm = nn.LayerNorm(width)

    def forward(self, ids):
        x = self.tokens(ids) + self.positions
        for _ in range(self.loops):
            x = checkpoint(self.block, x, use_reentrant=REENTRANT)
        return self.norm(x) @ self.tokens.weight.t()


def model():
    torch.manual_seed(18)
    return LoopedLM()


def batch(step):
    ids = torch.randint(
        0, 12, (8, 9), generator=torch.Generator().manual_seed(step + 600)
    )
    return ids[:, :-1], ids[:, 1:]


def loss(output, target):
    return F.cross_entropy(output.transpose(1, 2), target)


def optimizer(params):
    return torch.optim.SGD(params, lr=0.1, weight_decay=1e-3)
