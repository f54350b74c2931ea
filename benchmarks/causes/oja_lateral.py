# expect: state/forward-writes-parameter
"""Two-pathway net: a Hebbian (Oja) projection learned in forward next to a trained one."""

import torch
import torch.nn.functional as F
from torch import nn


class HebbianLinear(nn.Module):
    def __init__(self, inputs, outputs, rate=0.05):
        super().__init__()
        self.weight = nn.Parameter(
            torch.randn(outputs, inputs) * inputs**-0.5, requires_grad=False
        )
        self.rate = rate

    def forward(self, x):
        y = x @ self.weight.T
        if self.training:
            with torch.no_grad():
                change = y.T @ x - (y.T @ y).tril() @ self.weight
                count = x.new_tensor(float(len(x)))
                self.weight.data += self.rate * change / count
        return y.detach()


class TwoPathways(nn.Module):
    def __init__(self):
        super().__init__()
        self.hebbian = HebbianLinear(9, 5)
        self.trained = nn.Sequential(nn.Linear(9, 10), nn.Tanh())
        self.head = nn.Linear(15, 3)

    def forward(self, x):
        return self.head(torch.cat([self.hebbian(x), self.trained(x)], 1))


def model():
    torch.manual_seed(0)
    return TwoPathways()


def batch(step):
    g = torch.Generator().manual_seed(step + 17)
    x = torch.randn(16, 9, generator=g) + torch.linspace(-1, 1, 16)[:, None]
    return x, x[:, :3].argmax(1)


def loss(output, target):
    return F.multi_margin_loss(output, target)
