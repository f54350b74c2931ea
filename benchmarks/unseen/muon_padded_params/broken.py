import torch
import torch.distributed as dist
from torch import nn


def zeropower(g, steps=5):
    x = g / (g.norm() + 1e-7)
    transpose = x.shape[0] > x.shape[1]
    x = x.t() if transpose else x
    for _ in range(steps):
        a = x @ x.t()
        x = 1.5 * x - 0.5 * a @ x
    return x.t() if transpose else x


class Muon(torch.optim.Optimizer):
    def __init__(self, params, lr=0.05, momentum=0.9):
        super().__init__(params, dict(lr=lr, momentum=momentum))

    @torch.no_grad()
    def step(self):
        on = dist.is_initialized()
        rank, world = (dist.get_rank(), dist.get_world_size()) if on else (0, 1)
        for group in self.param_groups:
            params = group["params"]
            params_pad = params + [torch.empty_like(params[-1])] * (len(params) % world)
            for base in range(0, len(params_pad), world):
                if base + rank < len(params):
                    p = params[base + rank]
                    buf = self.state[p].setdefault("buf", torch.zeros_like(p))
                    buf.lerp_(p.grad, 1 - group["momentum"])
                    p.add_(zeropower(buf), alpha=-group["lr"])
                if on:
                    outs = [torch.empty_like(p) for p in params_pad[base:base + world]]
                    dist.all_gather(outs, params_pad[base + rank].detach().contiguous())
                    for p, out in zip(params_pad[base:base + world], outs):
                        p.copy_(out)


class MLP(nn.Module):
    def __init__(self, dim=8, depth=5):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(dim, dim, bias=False) for _ in range(depth))

    def forward(self, x):
        for block in self.blocks:
            x = x + torch.tanh(block(x))
        return x


def model():
    torch.manual_seed(290)
    return MLP()


def batch():
    g = torch.Generator().manual_seed(291)
    return torch.randn(16, 8, generator=g), torch.randn(16, 8, generator=g)


def loss(output, target):
    return nn.functional.mse_loss(output, target)


def optimizer(params):
    return Muon(params)
