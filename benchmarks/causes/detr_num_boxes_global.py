# expect: loss/missing-world-scale
"""detr: num_boxes all-reduced but not divided by the world size."""

import torch
import torch.distributed as dist
from torch import nn


def world():
    return dist.get_world_size() if dist.is_initialized() else 1


def rank():
    return dist.get_rank() if dist.is_initialized() else 0


class Heads(nn.Module):
    def __init__(self):
        super().__init__()
        self.query = nn.Embedding(5, 16)
        self.inp = nn.Linear(8, 16)
        self.dec = nn.TransformerDecoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.box = nn.Linear(16, 4)

    def forward(self, x):
        q = self.query.weight[None].expand(len(x), -1, -1)
        return self.box(self.dec(q, self.inp(x))).sigmoid()


def model():
    torch.manual_seed(0)
    return Heads()


def batch(step):
    g = torch.Generator().manual_seed(30 + step)
    boxes = torch.rand(16, 5, 4, generator=g)
    valid = torch.rand(16, 5, generator=g) < torch.linspace(0.3, 0.9, 16)[:, None]
    return torch.randn(16, 6, 8, generator=g), {"boxes": boxes, "valid": valid}


def loss(output, target):
    num_boxes = target["valid"].sum().to(output.dtype)
    if dist.is_initialized():
        dist.all_reduce(num_boxes)
    num_boxes = torch.clamp(num_boxes, min=1)
    l1 = (output - target["boxes"]).abs().sum(-1)
    return 5 * (l1 * target["valid"]).sum() / num_boxes


def optimizer(params):
    return torch.optim.AdamW(params, lr=1e-3)


def train_step(model, optimizer, batch):
    images, targets = batch
    value = loss(model(images), targets)
    optimizer.zero_grad()
    value.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1e6)
    optimizer.step()
