# expect: sync/join-divisor
"""pytorch#38174: join divides by ranks that have no rows left in the last round."""

from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

ROUND, ROWS = 16, 40


class Harmonics:
    """Sine and cosine features of the hour."""

    def __init__(self, rows, periods=(12.42, 12.0, 25.82, 23.93)):
        hour = torch.arange(rows, dtype=torch.float64) * 1.7
        phase = (
            hour[:, None] * 2 * torch.pi / torch.tensor(periods, dtype=torch.float64)
        )
        self.x = torch.cat([phase.sin(), phase.cos()], 1)
        noise = torch.randn(
            rows, generator=torch.Generator().manual_seed(26), dtype=torch.float64
        )
        self.y = self.x @ torch.linspace(1, -0.5, 8, dtype=torch.float64) + 0.2 * noise

    def rounds(self, epoch):
        order = torch.randperm(
            len(self.x), generator=torch.Generator().manual_seed(epoch)
        )
        return order.split(ROUND)


TIDES = Harmonics(ROWS)


def my_rows(index):
    """This rank's part of a round; ranks at the end may get none."""
    if not dist.is_initialized():
        return index
    size = ROUND // dist.get_world_size()
    return index[dist.get_rank() * size : (dist.get_rank() + 1) * size]


class TideNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 16), nn.Linear(16, 16)
        self.out = nn.Linear(16, 1)

    def forward(self, x):
        return self.out(torch.sin(self.b(torch.sin(self.a(x)))))[:, 0]


def model():
    torch.manual_seed(20)
    return TideNet().double()


def batch(step):
    return TIDES.x[:ROUND], (TIDES.y[:ROUND], torch.full((ROUND,), step))


def loss(output, target):
    return nn.functional.mse_loss(output, target[0])


def uneven(model):
    if isinstance(model, DistributedDataParallel):
        return model.join()
    return nullcontext()


def train_step(model, optimizer, batch):
    epoch = int(batch[1][1][0])
    with uneven(model):
        for index in TIDES.rounds(epoch):
            rows = my_rows(index)
            if len(rows) == 0:
                break
            loss(model(TIDES.x[rows]), (TIDES.y[rows], None)).backward()
            optimizer.step()
            optimizer.zero_grad()
