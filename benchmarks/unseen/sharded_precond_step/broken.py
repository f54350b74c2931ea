import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class ShardedShampooLite(torch.optim.Optimizer):
    def __init__(self, params, lr=0.05, beta=0.9):
        super().__init__(params, dict(lr=lr, beta=beta))

    @torch.no_grad()
    def step(self):
        on = dist.is_initialized()
        rank, world = (dist.get_rank(), dist.get_world_size()) if on else (0, 1)
        for group in self.param_groups:
            owned = [p for i, p in enumerate(group["params"]) if i % world == rank]
            mine = [p for p in owned if p.grad is not None]
            if not mine:
                continue
            for p in mine:
                avg = self.state[p].setdefault("avg", torch.zeros_like(p))
                avg.mul_(group["beta"]).addcmul_(p.grad, p.grad, value=1 - group["beta"])
                p.addcdiv_(p.grad, avg.sqrt().add_(1e-3), value=-group["lr"])
            if on:
                for i, p in enumerate(group["params"]):
                    dist.broadcast(p.data, src=i % world)


class Ranker(nn.Module):
    def __init__(self):
        super().__init__()
        self.w_click = nn.Parameter(torch.randn(10, 1) * 0.3)
        self.w_dwell = nn.Parameter(torch.randn(10, 1) * 0.3)
        self.b_click = nn.Parameter(torch.zeros(1))
        self.b_dwell = nn.Parameter(torch.zeros(1))

    def forward(self, x):
        return x @ self.w_click + self.b_click


def model():
    torch.manual_seed(50)
    return Ranker()


def batch():
    g = torch.Generator().manual_seed(51)
    x = torch.randn(16, 10, generator=g)
    return x, (x[:, :1] > 0).float()


def loss(score, click):
    return nn.functional.binary_cross_entropy_with_logits(score, click)


def wrap(net):
    return DDP(net, find_unused_parameters=True)


def optimizer(params):
    return ShardedShampooLite(params)
