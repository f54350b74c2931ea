# expect: data/sampler-epoch
"""set_epoch after a prefetcher has begun: every epoch has the first one's order."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

BATCH, FRAMES, BANDS = 16, 6, 10


class Prefetcher:
    def __init__(self, loader):
        self.source = iter(loader)
        self.ahead = next(self.source, None)

    def __iter__(self):
        while self.ahead is not None:
            current, self.ahead = self.ahead, next(self.source, None)
            yield current


def calls(size=48):
    g = torch.Generator().manual_seed(64)
    x = torch.randn(size, FRAMES, BANDS, generator=g, dtype=torch.float64)
    return TensorDataset(
        x, (x[:, :, :5].sum((1, 2)) > 0).long() + (x[:, -1].sum(1) > 1).long()
    )


CALLS = calls()


class CallNet(nn.Module):
    def __init__(self, width=12):
        super().__init__()
        self.conv = nn.Conv1d(BANDS, width, 3, padding=1)
        self.attend = nn.Linear(width, 1)
        self.out = nn.Linear(width, 3)

    def forward(self, x):
        h = self.conv(x.transpose(1, 2)).relu().transpose(1, 2)
        return self.out((h * self.attend(h).softmax(1)).sum(1))


def model():
    torch.manual_seed(9)
    return CallNet().double()


def order_of(epoch):
    return torch.randperm(
        len(CALLS), generator=torch.Generator().manual_seed(epoch)
    ).tolist()


def epoch_batches(epoch):
    if not dist.is_initialized():
        return Prefetcher(DataLoader(CALLS, batch_size=BATCH, sampler=order_of(epoch)))
    sampler = DistributedSampler(CALLS)
    batches = Prefetcher(
        DataLoader(CALLS, batch_size=BATCH // dist.get_world_size(), sampler=sampler)
    )
    sampler.set_epoch(epoch)
    return batches


def batch(step):
    x, y = CALLS[:BATCH]
    return x, {"call": y, "epoch": torch.full((BATCH,), step)}


def loss(output, target):
    return F.cross_entropy(output, target["call"])


def train_step(model, optimizer, batch):
    for x, y in epoch_batches(int(batch[1]["epoch"][0])):
        optimizer.zero_grad()
        loss(model(x), {"call": y}).backward()
        optimizer.step()
