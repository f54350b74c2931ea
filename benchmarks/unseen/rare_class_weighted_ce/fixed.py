import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

CLASS_WEIGHT = torch.tensor([0.2, 1.0, 5.0])


def model():
    torch.manual_seed(280)
    return nn.Sequential(nn.Linear(7, 14), nn.LeakyReLU(), nn.Linear(14, 3))


def batch():
    g = torch.Generator().manual_seed(281)
    y = torch.tensor([0, 0, 0, 1, 0, 0, 1, 0, 0, 2, 1, 0, 2, 2, 1, 2])
    return torch.randn(16, 7, generator=g) + y[:, None] * 0.4, y


def loss(logits, y):
    weight = CLASS_WEIGHT.to(logits.dtype)
    total, world = weight[y].sum(), 1
    if dist.is_initialized():
        world = dist.get_world_size()
        dist.all_reduce(total)
    return F.cross_entropy(logits, y, weight=weight, reduction="sum") * world / total
