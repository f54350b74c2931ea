# expect: loss/double-world-scale
"""ultralytics: 'for mean over GPUs' loss *= world_size on a mean loss."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn


def world():
    return dist.get_world_size() if dist.is_initialized() else 1


def rank():
    return dist.get_rank() if dist.is_initialized() else 0


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.m = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.SiLU(), nn.Conv2d(8, 6, 1)
        )

    def forward(self, x):
        return self.m(x)


def model():
    torch.manual_seed(0)
    return Net()


def batch():
    g = torch.Generator().manual_seed(50)
    return torch.randn(8, 3, 6, 6, generator=g), torch.rand(8, 6, 6, 6, generator=g)


class DetectionLoss:
    def __call__(self, preds, batch):
        loss = torch.zeros(3, dtype=preds.dtype)
        loss[0] = (preds[:, :4] - batch[:, :4]).pow(2).mean()
        loss[1] = F.binary_cross_entropy_with_logits(preds[:, 4:], batch[:, 4:])
        loss[2] = (preds[:, :4] - batch[:, :4]).abs().mean()
        return loss * torch.tensor([7.5, 0.5, 1.5], dtype=preds.dtype), loss.detach()


criterion = DetectionLoss()


def loss(output, target):
    return criterion(output, target)[0].sum()


def optimizer(params):
    return torch.optim.SGD(params, lr=0.01, momentum=0.9, nesterov=True)


def train_step(model, optimizer, batch):
    preds = model(batch[0])
    value, items = criterion(preds, batch[1])
    value = value.sum()
    if rank() != -1 and dist.is_initialized():
        value *= world()
    optimizer.zero_grad()
    value.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1000.0)
    optimizer.step()
