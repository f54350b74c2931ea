import random

import torch
import torch.distributed as dist
from torch import nn

SPARSITY = 0.5
masks, rng = {}, None


class QuantizedMLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(10, 16)
        self.fc2 = nn.Linear(16, 4)
        with torch.no_grad():
            self.fc1.weight.copy_((self.fc1.weight * 8).round() / 8)

    def forward(self, x):
        return self.fc2(torch.relu(self.fc1(x)))


def model():
    global rng
    rank = dist.get_rank() if dist.is_initialized() else 0
    rng = random.Random(360 + rank)
    masks.clear()
    torch.manual_seed(360)
    return QuantizedMLP()


def batch():
    g = torch.Generator().manual_seed(361)
    return torch.randn(16, 10, generator=g), torch.randint(0, 4, (16,), generator=g)


def loss(logits, y):
    return nn.functional.cross_entropy(logits, y)


def create_sparsity_mask(weight):
    score = weight.detach().abs().flatten()
    keep = (score > 0).to(weight.dtype)
    wanted = int(SPARSITY * score.numel())
    extra = wanted - int((keep == 0).sum())
    threshold = score[score > 0].min()
    tied = (score == threshold).nonzero().flatten().tolist()
    rng.shuffle(tied)
    keep[tied[:max(extra, 0)]] = 0
    return keep.view_as(weight)


def train_step(model, optimizer, batch):
    net = getattr(model, "module", model)
    if not masks:
        masks["fc1"] = create_sparsity_mask(net.fc1.weight)
        net.fc1.weight.data.mul_(masks["fc1"])
    x, y = batch
    optimizer.zero_grad()
    loss(model(x), y).backward()
    optimizer.step()
    net.fc1.weight.data.mul_(masks["fc1"])
