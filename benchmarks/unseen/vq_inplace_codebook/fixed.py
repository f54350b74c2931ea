import torch
import torch.distributed as dist
from torch import nn


class Codebook(nn.Module):
    def __init__(self, codes=6, dim=8, lr=1.0):
        super().__init__()
        self.lr = lr
        self.register_buffer("embed", torch.randn(codes, dim))

    def forward(self, z):
        with torch.no_grad():
            idx = torch.cdist(z, self.embed).argmin(1)
        if self.training:
            weight = self.embed.detach().clone().requires_grad_()
            codebook_loss = (weight[idx] - z.detach()).pow(2).mean()
            (grad,) = torch.autograd.grad(codebook_loss, weight)
            if dist.is_initialized():
                dist.all_reduce(grad)
                grad /= dist.get_world_size()
            quantize = weight.detach()[idx]
            self.embed.sub_(self.lr * grad)
        else:
            quantize = self.embed[idx]
        commit = (z - quantize).pow(2).mean(1)
        return z + (quantize - z).detach(), commit


class VQAutoEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = nn.Linear(12, 8)
        self.vq = Codebook()
        self.dec = nn.Linear(8, 12)

    def forward(self, x):
        q, commit = self.vq(self.enc(x))
        return self.dec(q), commit


def model():
    torch.manual_seed(4)
    return VQAutoEncoder()


def batch():
    x = torch.randn(16, 12, generator=torch.Generator().manual_seed(8)) * 2
    x[8:] += 1.5
    return x, x.clone()


def loss(output, target):
    recon, commit = output
    return nn.functional.mse_loss(recon, target) + 0.25 * commit.mean()
