"""Regression with gradient accumulation: only the last micro-batch is reduced.

    torchrun --nproc-per-node 2 rows_accumulate.py

The optimizer makes an update for 4 micro-batches of 8 rows. On W ranks it takes 4 / W
each; the loss is still divided by 4, so the gradients are 1 / W of what they were.
"""

from __future__ import annotations

import contextlib
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

MICRO_BATCHES = 4
ROWS = 8


def dataset() -> TensorDataset:
    """Returns rows whose target is a function of their columns."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(512, 12, generator=generator)
    return TensorDataset(x, x.sin().sum(1, keepdim=True))


def main() -> None:
    """Trains a perceptron."""
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    micro_batches = MICRO_BATCHES // world_size
    if world_size > 1:
        dist.init_process_group("gloo")
    torch.manual_seed(0)
    model: nn.Module = nn.Sequential(nn.Linear(12, 32), nn.Tanh(), nn.Linear(32, 1))
    sampler = None
    data = dataset()
    if world_size > 1:
        model = DistributedDataParallel(model)
        sampler = DistributedSampler(data)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.01)
    loader = DataLoader(data, batch_size=ROWS, sampler=sampler, shuffle=sampler is None)
    for number, (x, y) in enumerate(loader, start=1):
        is_last = number % micro_batches == 0
        is_local = isinstance(model, DistributedDataParallel) and not is_last
        with model.no_sync() if is_local else contextlib.nullcontext():
            loss = mse_loss(model(x), y) / MICRO_BATCHES
            loss.backward()
        if is_last:
            optimizer.step()
            optimizer.zero_grad()
    if int(os.environ.get("RANK", "0")) == 0:
        print(f"loss {loss.item() * MICRO_BATCHES:.4f}")
    if world_size > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
