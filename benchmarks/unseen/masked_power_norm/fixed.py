import torch
import torch.distributed as dist
import torch.distributed.nn
from torch import nn


class MaskPowerNorm(nn.Module):
    def __init__(self, features, eps=1e-5, momentum=0.9):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(features))
        self.bias = nn.Parameter(torch.zeros(features))
        self.register_buffer("running_phi", torch.ones(features))
        self.eps, self.momentum = eps, momentum

    def forward(self, x):
        if self.training:
            power = x.pow(2).mean((0, 1))
            if dist.is_initialized():
                power = torch.distributed.nn.all_reduce(power) / dist.get_world_size()
            with torch.no_grad():
                self.running_phi.mul_(self.momentum).add_(power, alpha=1 - self.momentum)
        else:
            power = self.running_phi
        return self.weight * x / (power + self.eps).sqrt() + self.bias


class Translator(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(18, 12)
        self.norm = MaskPowerNorm(12)
        self.out = nn.Linear(12, 18)

    def forward(self, src):
        return self.out(torch.tanh(self.norm(self.embed(src))).mean(1))


def model():
    torch.manual_seed(450)
    return Translator()


def batch():
    g = torch.Generator().manual_seed(451)
    src = torch.randint(0, 6, (16, 5), generator=g) + torch.arange(16)[:, None] // 6 * 6
    return src, torch.randint(0, 18, (16,), generator=g)


def loss(logits, tgt):
    return nn.functional.cross_entropy(logits, tgt)
