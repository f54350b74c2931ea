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
    flag = torch.tensor(float(value > MAX_LOSS))
    if dist.is_initialized():
        dist.broadcast(flag, src=0)
    return bool(flag)


def train_step(model, optimizer, batch):
    states, nexts = batch
    for t in range(states.shape[1]):
        value = loss(model(states[:, t]), nexts[:, t])
        optimizer.zero_grad()
        value.backward()
        if should_skip(value.detach().clone()):
            continue
        optimizer.step()
