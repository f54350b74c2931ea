# expect: loss/router-aux or loss/batch-coupled
"""Megatron-LM#3672: switch load balancing f_i * P_i from local token counts, computed in the model, added in the loss."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn


def world():
    return dist.get_world_size() if dist.is_initialized() else 1


def rank():
    return dist.get_rank() if dist.is_initialized() else 0


class SwitchFFN(nn.Module):
    def __init__(self, width=12, experts=4):
        super().__init__()
        self.router = nn.Linear(width, experts)
        self.experts = nn.ModuleList(
            [
                nn.Sequential(nn.Linear(width, 24), nn.ReLU(), nn.Linear(24, width))
                for _ in range(experts)
            ]
        )

    def forward(self, x):
        probs = self.router(x).softmax(-1)
        gate, index = probs.max(-1)
        out = sum(
            (index == e).to(x.dtype)[..., None] * f(x)
            for e, f in enumerate(self.experts)
        )
        frac = F.one_hot(index, len(self.experts)).to(x.dtype).mean((0, 1))
        aux = len(self.experts) * (frac * probs.mean((0, 1))).sum()
        return x + gate[..., None] * out, aux


class MoE(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(17, 12)
        self.ffn = SwitchFFN()
        self.out = nn.Linear(12, 17)

    def forward(self, tokens):
        x, aux = self.ffn(self.embed(tokens))
        return self.out(x), aux


def model():
    torch.manual_seed(0)
    return MoE()


def batch(step):
    g = torch.Generator().manual_seed(80 + step)
    tokens = torch.randint(0, 17, (16, 8), generator=g)
    return tokens, tokens.roll(-1, 1)


def loss(output, target):
    logits, aux = output
    return F.cross_entropy(logits.flatten(0, 1), target.flatten()) + 0.05 * aux
