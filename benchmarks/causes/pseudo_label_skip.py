# expect: graph/skipped-backward
"""Semi-supervised step: samples with a confidence below the threshold are not learned from."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

THRESHOLD = 0.5


class Tabular(nn.Module):
    def __init__(self, columns=6, cardinality=8, width=10):
        super().__init__()
        self.columns = nn.ModuleList(
            nn.Embedding(cardinality, 3) for _ in range(columns)
        )
        self.mlp = nn.Sequential(
            nn.Linear(3 * columns, width), nn.SELU(), nn.Linear(width, width), nn.SELU()
        )
        self.out = nn.Linear(width, 3)

    def forward(self, x):
        h = torch.cat([embed(x[:, i]) for i, embed in enumerate(self.columns)], 1)
        return self.out(self.mlp(h))


def model():
    torch.manual_seed(27)
    return Tabular()


def batch(step):
    g = torch.Generator().manual_seed(15 + step)
    confidence = torch.rand(16, generator=g)
    if step == 1:
        confidence[4:] *= 0.4
        confidence[:4] = 0.9
    else:
        confidence[::4] = 0.8
    return torch.randint(0, 8, (16, 6), generator=g), (
        torch.randint(0, 3, (16,), generator=g),
        confidence,
    )


def loss(output, target):
    label, confidence = target
    keep = confidence > THRESHOLD
    count, world = keep.sum(), 1
    if dist.is_initialized():
        dist.all_reduce(count)
        world = dist.get_world_size()
    each = F.cross_entropy(output, label, reduction="none")
    return world * (each * keep).sum() / count


def train_step(model, optimizer, batch):
    x, target = batch
    optimizer.zero_grad()
    value = loss(model(x), target)
    if not (target[1] > THRESHOLD).any():
        return  # nothing to learn from here
    value.backward()
    optimizer.step()
