# expect: data/sampler-padding
"""pytorch#25162: DistributedSampler repeats rows to fill the shards of an epoch."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from sklearn.datasets import load_wine
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

GLOBAL_BATCH = 16
SEED = 11


def load():
    x, y = load_wine(return_X_y=True)
    x = torch.tensor(x, dtype=torch.float64)
    x = (x - x.mean(0)) / x.std(0)
    pick = torch.randperm(len(x), generator=torch.Generator().manual_seed(3))[:45]
    return TensorDataset(x[pick], torch.tensor(y)[pick])


TRAIN = load()


class Classifier(nn.Module):
    def __init__(self, features=13, hidden=24, classes=3):
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(features, hidden),
            nn.LayerNorm(hidden),
            nn.GELU(),
            nn.Linear(hidden, hidden),
            nn.GELU(),
        )
        self.head = nn.Linear(hidden, classes)

    def forward(self, x):
        return self.head(self.body(x))


def model():
    torch.manual_seed(0)
    return Classifier().double()


def make_loader(epoch):
    world = dist.get_world_size() if dist.is_initialized() else 1
    rank = dist.get_rank() if dist.is_initialized() else 0
    sampler = DistributedSampler(
        TRAIN, num_replicas=world, rank=rank, shuffle=True, seed=SEED
    )
    sampler.set_epoch(epoch)
    return DataLoader(TRAIN, batch_size=GLOBAL_BATCH // world, sampler=sampler)


def batch(step):
    x, y = TRAIN[:GLOBAL_BATCH]
    return x, {"label": y, "epoch": torch.full((GLOBAL_BATCH,), step)}


def loss(output, target):
    return F.cross_entropy(output, target["label"])


def optimizer(params):
    return torch.optim.SGD(params, lr=0.05, momentum=0.9)


def train_step(model, optimizer, batch):
    _, target = batch
    epoch = int(target["epoch"][0])
    correct = seen = 0
    for x, y in make_loader(epoch):
        optimizer.zero_grad()
        logits = model(x)
        loss(logits, {"label": y}).backward()
        optimizer.step()
        correct += int((logits.argmax(1) == y).sum())
        seen += len(y)
    return {"accuracy": correct / max(seen, 1)}
