import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F


class EuclideanCodebook(nn.Module):
    def __init__(self, size=5, dim=6, decay=0.8, eps=1e-5):
        super().__init__()
        self.decay, self.eps, self.size = decay, eps, size
        embed = torch.randn(size, dim)
        self.register_buffer("embed", embed)
        self.register_buffer("embed_avg", embed.clone())
        self.register_buffer("cluster_size", torch.ones(size))

    def forward(self, x):
        idx = torch.cdist(x.detach(), self.embed).argmin(1)
        quantize = F.embedding(idx, self.embed.clone())
        if self.training:
            onehot = F.one_hot(idx, self.size).to(x.dtype)
            counts = onehot.sum(0)
            embed_sum = onehot.t() @ x.detach()
            if dist.is_initialized():
                dist.all_reduce(counts)
                dist.all_reduce(embed_sum)
            self.cluster_size.mul_(self.decay).add_(counts, alpha=1 - self.decay)
            self.embed_avg.mul_(self.decay).add_(embed_sum, alpha=1 - self.decay)
            n = self.cluster_size.sum()
            smoothed = (self.cluster_size + self.eps) / (n + self.size * self.eps) * n
            self.embed.copy_(self.embed_avg / smoothed[:, None])
        return quantize


class Codec(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(10, 16), nn.ELU(), nn.Linear(16, 6))
        self.quantizer = EuclideanCodebook()
        self.decoder = nn.Linear(6, 10)

    def forward(self, wav):
        z = self.encoder(wav)
        q = self.quantizer(z)
        commit = (z - q).pow(2).mean(1, keepdim=True)
        return torch.cat([self.decoder(z + (q - z).detach()), commit], 1)


def model():
    torch.manual_seed(21)
    return Codec()


def batch():
    wav = torch.randn(16, 10, generator=torch.Generator().manual_seed(22))
    return wav * torch.linspace(0.5, 3, 16)[:, None], wav


def loss(output, wav):
    return F.l1_loss(output[:, :-1], wav) + output[:, -1].mean()
