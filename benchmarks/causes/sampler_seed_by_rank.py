# expect: data/shard-overlap
"""A sampler seeded by rank: the shards are parts of different permutations."""

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


@dataclass
class Settings:
    seed: int = 40
    batch: int = 16
    lr: float = 0.05
    rank: int = 0
    world: int = 1

    @classmethod
    def from_env(cls):
        if not dist.is_initialized():
            return cls()
        return cls(rank=dist.get_rank(), world=dist.get_world_size())

    @property
    def process_seed(self):
        return self.seed + self.rank


def patches(size=48):
    g = torch.Generator().manual_seed(14)
    x = torch.rand(size, 1, 6, 6, 6, generator=g, dtype=torch.float64)
    return TensorDataset(x, x.clamp(0.3, 0.7).mean((1, 2, 3, 4)) * 10)


SCANS = patches()


class VolumeNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv3d(1, 6, 3, stride=2, padding=1)
        self.norm = nn.InstanceNorm3d(6, affine=True)
        self.fc = nn.Sequential(
            nn.Flatten(), nn.Linear(6 * 27, 16), nn.ReLU(), nn.Linear(16, 1)
        )

    def forward(self, x):
        return self.fc(self.norm(self.conv(x)).relu())[:, 0]


def model():
    torch.manual_seed(10)
    return VolumeNet().double()


def batch(step):
    x, y = SCANS[:16]
    return x, (y, torch.full((16,), step))


def loss(output, target):
    return nn.functional.l1_loss(output, target[0])


def optimizer(params):
    return torch.optim.SGD(params, lr=Settings().lr)


def train_step(model, optimizer, batch):
    cfg = Settings.from_env()
    torch.manual_seed(cfg.process_seed)
    sampler = DistributedSampler(
        SCANS, cfg.world, cfg.rank, shuffle=True, seed=cfg.process_seed
    )
    sampler.set_epoch(int(batch[1][1][0]))
    for x, y in DataLoader(SCANS, batch_size=cfg.batch // cfg.world, sampler=sampler):
        optimizer.zero_grad()
        loss(model(x), (y, None)).backward()
        optimizer.step()
