import torch
import torch.distributed as dist
from torch import nn


class PCLayer(nn.Module):
    def __init__(self, dim, lr=0.1):
        super().__init__()
        self.lr = lr
        self.fc = nn.Linear(dim, dim)
        self.lateral = nn.Parameter(torch.eye(dim) * 0.1, requires_grad=False)

    def forward(self, x):
        y = torch.tanh(self.fc(x)) + x @ self.lateral.clone()
        if self.training:
            with torch.no_grad():
                hebb = y.t() @ y / len(y)
                decay = (y * y).mean(0)
                self.lateral.add_(self.lr * (hebb - decay * self.lateral))
        return y


class PCTransformerLite(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp = nn.Linear(9, 8)
        self.pc = PCLayer(8)
        self.out = nn.Linear(8, 3)

    def forward(self, x):
        return self.out(self.pc(self.inp(x)))


def model():
    torch.manual_seed(390)
    return PCTransformerLite()


def batch():
    g = torch.Generator().manual_seed(391)
    x = torch.randn(16, 9, generator=g) + torch.linspace(-1, 1, 16)[:, None]
    return x, torch.randint(0, 3, (16,), generator=g)


def loss(logits, y):
    return nn.functional.cross_entropy(logits, y)
