# expect: forward/batch-coupled, loss/sum-reduction or loss/missing-world-scale
"""Anomaly scorer on event embeddings relative to the batch's mean embedding, sum over a configured batch size."""

import torch
import torch.nn.functional as F
from torch import nn

BATCH_SIZE = 16


class RelativeScorer(nn.Module):
    def __init__(self, width=12):
        super().__init__()
        self.embed = nn.Sequential(
            nn.Linear(7, width), nn.GELU(), nn.Linear(width, width)
        )
        self.score = nn.Sequential(
            nn.Linear(2 * width, width), nn.GELU(), nn.Linear(width, 1)
        )

    def forward(self, x):
        z = self.embed(x)
        centre = z.mean(0, keepdim=True)
        return self.score(torch.cat([z, (z - centre).abs()], 1)).squeeze(1)


def model():
    torch.manual_seed(0)
    return RelativeScorer()


def batch(step):
    g = torch.Generator().manual_seed(step + 61)
    x = torch.randn(16, 7, generator=g) + torch.linspace(-1, 1, 16)[:, None]
    return x, (torch.rand(16, generator=g) < 0.3).float()


def loss(output, target):
    return (
        F.binary_cross_entropy_with_logits(output, target, reduction="sum") / BATCH_SIZE
    )


def train_step(model, optimizer, batch):
    x, y = batch
    optimizer.zero_grad(set_to_none=True)
    loss(model(x), y).backward()
    nn.utils.clip_grad_value_(model.parameters(), 5.0)
    optimizer.step()
