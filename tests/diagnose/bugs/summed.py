"""Bugs of terms that are made of sums over ranks, as in __init__."""

from __future__ import annotations

_TWO_VIEWS = """
import torch.distributed as dist
from torch.distributed.nn.functional import all_gather, all_reduce
class Summed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, value):
        total = value.clone()
        dist.all_reduce(total)
        return total
    @staticmethod
    def backward(ctx, grad):
        grad = grad.clone()
        dist.all_reduce(grad)
        return grad
class TwoViews(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
    def forward(self, x):
        return self.body(x), self.body(x.flip(1))
model = TwoViews()
batch = torch.randn(8, 4) * torch.linspace(0.3, 2.0, 8)[:, None], torch.zeros(8)
def loss(output, target):
    near = nn.functional.mse_loss(*output)
    output = torch.cat(output, 1)
    if dist.is_initialized():
        near = SUM
        output = torch.cat(all_gather(output))
    apart = output - output.mean(0)
    between = apart.T @ apart / (len(output) - 1)
    return 3 * near + between.triu(1).square().sum()
"""

BUGS: dict[str, tuple[str, list[tuple[str, bool | None]]]] = {
    "sum-of-means-beside-what-all-ranks-have": (
        _TWO_VIEWS.replace("SUM", "all_reduce(near)"),
        [("collective/backward-double-count", True)],
    ),
    "sum-of-means-by-a-function-of-its-own": (
        _TWO_VIEWS.replace("SUM", "Summed.apply(near)"),
        [("collective/backward-double-count", True)],
    ),
    # What the file has by names of its own is watched and mended all the same.
    "sum-of-means-by-imported-names": (
        "from torch.distributed import all_reduce as add, is_initialized as is_here\n"
        + _TWO_VIEWS.replace("SUM", "Summed.apply(near)")
        .replace("dist.all_reduce(", "add(")
        .replace("dist.is_initialized()", "is_here()"),
        [("collective/backward-double-count", True)],
    ),
    # The same sum is divided: what is wrong is the other term.
    "covariance-of-the-shard-beside-a-mean-of-all": (
        _TWO_VIEWS.replace("SUM", "all_reduce(near) / dist.get_world_size()").replace(
            "output = torch.cat(all_gather(output))", "pass"
        ),
        [("loss/batch-coupled", True)],
    ),
}

SOUND: dict[str, str] = {
    "mean-of-means-beside-what-all-ranks-have": _TWO_VIEWS.replace(
        "SUM", "all_reduce(near) / dist.get_world_size()"
    ),
}
