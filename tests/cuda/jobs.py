"""What the GPU tests run in ranks; results are plain numbers."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ddpcheck.ranks import devices
from ddpcheck.ranks.worker import Context
from ddpcheck.run.model import batch_norm
from ddpcheck.run.modes.data_parallel import DataParallelOnGPUs, DataParallelOnOneDevice

_FEATURES = 3


def backend(context: Context) -> tuple[str, int, float]:
    """Returns the backend of GPU tensors, this rank's GPU, and a sum over ranks."""
    value = torch.tensor(float(context.seat.rank + 1), device="cuda")
    dist.all_reduce(value)
    group = dist.distributed_c10d._get_default_group()  # noqa: SLF001
    name = group._get_backend(torch.device("cuda")).name()  # noqa: SLF001
    return name, torch.cuda.current_device(), float(value)


def allocated(_: Context) -> int:
    """Returns the bytes of GPU memory that this process holds, caches included."""
    return torch.cuda.memory_reserved()


def sync_batch_norm(context: Context, *, sizes: list[int]) -> float:
    """Returns how far our SyncBatchNorm is from torch's, over outputs and gradients."""
    rank = context.seat.rank
    devices.use("cuda", rank)
    x = _samples(sum(sizes))[sum(sizes[:rank]) : sum(sizes[: rank + 1])]
    ours = batch_norm.SynchronizedBatchNorm(_FEATURES)
    theirs = nn.SyncBatchNorm(_FEATURES)
    return max(
        float((a - b).abs().max())
        for a, b in zip(_trained(ours, x), _trained(theirs, x), strict=True)
    )


def data_parallel(_: Context, *, world_size: int, num_samples: int) -> float:
    """Returns how far the emulation is from torch's DataParallel on GPUs."""
    x = _samples(num_samples)
    real = DataParallelOnGPUs(_Net().double().cuda(), world_size)
    emulated = DataParallelOnOneDevice(_Net().double().cuda(), world_size)
    return max(
        float((a - b).abs().max())
        for a, b in zip(_trained(real, x), _trained(emulated, x), strict=True)
    )


def data_parallel_on_one(_: Context, *, world_size: int, num_samples: int) -> float:
    """Returns how far the emulation is from torch's DataParallel on one GPU.

    Named several times, the GPU holds as many replicas. They share what torch sends
    alone instead of with others of its dtype: the count of batches, not compared here.
    """
    x = _samples(num_samples)
    real = nn.DataParallel(_Net().double().cuda(), [0] * world_size)
    emulated = DataParallelOnOneDevice(_Net().double().cuda(), world_size)
    return max(
        float((a - b).abs().max())
        for a, b in zip(_trained(real, x), _trained(emulated, x), strict=True)
        if a.is_floating_point()
    )


class _Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(_FEATURES, 5)
        self.norm = nn.BatchNorm1d(5)
        self.last = nn.Linear(5, _FEATURES)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(self.norm(self.first(x)).relu())
        return out


def _samples(count: int) -> Tensor:
    torch.manual_seed(1)
    return torch.randn(count, _FEATURES, dtype=torch.float64).cuda()


def _trained(module: Any, x: Tensor) -> list[Tensor]:
    """Returns output, gradients and buffers after one step."""
    module = module.double().cuda()
    leaf = x.clone().requires_grad_()
    output = module(leaf)
    output.pow(3).sum().backward()
    gradients = [p.grad for p in module.parameters()]
    assert leaf.grad is not None
    return [output.detach(), leaf.grad, *gradients, *module.buffers()]
