"""Digits with DistributedDataParallel and a DistributedSampler.

    torchrun --nproc-per-node 2 digits_sampler_fixed.py --epochs 2

The loss is a mean over the batch of the rank; all ranks have equal numbers of rows.
"""

from __future__ import annotations

import argparse
import os

import digits
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler


def network() -> nn.Module:
    """Returns a small convolutional network."""
    return nn.Sequential(
        nn.Conv2d(1, 8, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(8 * 3 * 3, 10),
    )


def main() -> None:
    """Trains it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=32, help="of all ranks")
    parser.add_argument("--lr", type=float, default=0.01)
    args = parser.parse_args()
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
    data = digits.dataset()
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=args.batch_size // world_size, sampler=sampler)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for images, labels in loader:
            optimizer.zero_grad()
            loss = cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
        if dist.get_rank() == 0:
            print(f"epoch {epoch} loss {loss.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
