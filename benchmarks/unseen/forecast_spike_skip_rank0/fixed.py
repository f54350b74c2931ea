import torch
import torch.distributed as dist
from torch import nn

MAX_LOSS = 6.0


class Forecaster(nn.Module):
    def __init__(self, channels=8):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(channels, 24), nn.GELU(), nn.Linear(24, channels))

    def forward(self, state):
        return state + self.net(state)


def model():
    torch.manual_seed(1)
    return Forecaster()


def batch():
    g = torch.Generator().manual_seed(2)
    fields = torch.randn(16, 3, 8, generator=g)
    fields[10:, 2] *= 9.0
    return fields[:, :2], fields[:, 1:]


def loss(pred, target):
    return nn.functional.mse_loss(pred, target)


def should_skip(value):
    if dist.is_initialized():
        dist.all_reduce(value)
        value /= dist.get_world_size()
    return bool(value > MAX_LOSS)


def train_step(model, optimizer, batch):
    states, nexts = batch
    for t in range(states.shape[1]):
        value = loss(model(states[:, t]), nexts[:, t])
        optimizer.zero_grad()
        value.backward()
        if should_skip(value.detach().clone()):
            continue
        optimizer.step()
