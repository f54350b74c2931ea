import torch
import torch.distributed as dist
from torch import nn

MAX_GRAD_NORM = 0.5


def model():
    torch.manual_seed(11)
    return nn.Sequential(nn.Linear(10, 24), nn.SiLU(), nn.Linear(24, 5))


def batch():
    g = torch.Generator().manual_seed(12)
    return torch.randn(16, 10, generator=g), torch.randint(0, 5, (16,), generator=g)


def loss(logits, labels):
    return nn.functional.cross_entropy(logits, labels) * 4


def clip_grad_norm(parameters, max_norm, group=None):
    grads = [p.grad for p in parameters if p.grad is not None]
    total = torch.stack([g.pow(2).sum() for g in grads]).sum()
    if group is not None:
        dist.all_reduce(total, group=group)
    total_norm = total.sqrt()
    coef = (max_norm / (total_norm + 1e-6)).clamp(max=1.0)
    for g in grads:
        g.mul_(coef)
    return total_norm


def train_step(model, optimizer, batch):
    inputs, labels = batch
    optimizer.zero_grad()
    loss(model(inputs), labels).backward()
    clip_grad_norm(model.parameters(), MAX_GRAD_NORM)
    optimizer.step()
