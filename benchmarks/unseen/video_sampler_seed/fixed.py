import torch
import torch.distributed as dist
from torch import nn

CLIPS, PER_STEP, SEED = 48, 16, 9


class ClipRegressor(nn.Module):
    def __init__(self):
        super().__init__()
        self.temporal = nn.Conv1d(4, 8, 3)
        self.out = nn.Linear(8, 2)

    def forward(self, clip):
        return self.out(torch.relu(self.temporal(clip)).mean(2))


order = None


def world_info():
    return (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)


class ShuffledSampler:
    """Yields, per step, the clips of this replica."""

    def __init__(self, seed, rank, world):
        g = torch.Generator().manual_seed(seed)
        self.perm, self.rank, self.world, self.step = torch.randperm(CLIPS, generator=g), rank, world, 0

    def next(self):
        rows = self.perm[self.step * PER_STEP:(self.step + 1) * PER_STEP]
        self.step = (self.step + 1) % (CLIPS // PER_STEP)
        return rows[self.rank::self.world]


def model():
    global order
    rank, world = world_info()
    order = ShuffledSampler(SEED, rank, world)
    torch.manual_seed(460)
    return ClipRegressor()


def dataset(dtype):
    g = torch.Generator().manual_seed(461)
    clips = torch.randn(CLIPS, 4, 9, generator=g).to(dtype)
    return clips, torch.stack([clips.mean((1, 2)), clips.amax((1, 2))], 1)


def batch():
    clips, target = dataset(torch.float32)
    return clips[:PER_STEP], target[:PER_STEP]


def loss(pred, target):
    return nn.functional.mse_loss(pred, target)


def train_step(model, optimizer, batch):
    clips, target = dataset(batch[0].dtype)
    rows = order.next()
    optimizer.zero_grad()
    loss(model(clips[rows]), target[rows]).backward()
    optimizer.step()
