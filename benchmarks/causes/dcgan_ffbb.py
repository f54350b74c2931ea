# expect: ddp/multi-backward
"""pytorch#47260: two forwards of the wrapped discriminator, then two backward calls."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn


def world():
    return dist.get_world_size() if dist.is_initialized() else 1


def rank():
    return dist.get_rank() if dist.is_initialized() else 0


class D(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(10, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))

    def forward(self, x):
        return self.net(x)[:, 0]


def model():
    torch.manual_seed(0)
    return D()


def batch(step):
    g = torch.Generator().manual_seed(380 + step)
    return torch.randn(16, 10, generator=g) + 1, torch.randn(16, 10, generator=g)


def loss(output, target):
    return F.binary_cross_entropy_with_logits(output, torch.ones_like(output))


def train_step(model, optimizer, batch):
    real, fake = batch
    optimizer.zero_grad()
    d_real, d_fake = model(real), model(fake)
    err_real = F.binary_cross_entropy_with_logits(d_real, torch.ones_like(d_real))
    err_fake = F.binary_cross_entropy_with_logits(d_fake, torch.zeros_like(d_fake))
    err_real.backward()
    err_fake.backward()
    optimizer.step()


def optimizer(params):
    return torch.optim.Adam(params, lr=2e-3, betas=(0.5, 0.999))
