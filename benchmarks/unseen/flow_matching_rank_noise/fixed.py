import torch
import torch.distributed as dist
from torch import nn


class VelocityNet(nn.Module):
    def __init__(self, dim=8):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(dim + 1, 32), nn.SiLU(), nn.Linear(32, dim))

    def forward(self, x_t, t):
        return self.net(torch.cat([x_t, t[:, None]], 1))


rng = None


def model():
    global rng
    rng = torch.Generator().manual_seed(42)
    torch.manual_seed(42)
    return VelocityNet()


def batch():
    action = torch.randn(16, 8, generator=torch.Generator().manual_seed(140))
    return action, torch.arange(16)


def loss(velocity, target):
    return (velocity - target).pow(2).mean()


def sample_noise_and_time(action):
    rank, world = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    noise = torch.randn(world * len(action), *action.shape[1:], generator=rng).to(action.dtype)
    time = torch.rand(world * len(action), generator=rng).to(action.dtype)
    mine = slice(rank * len(action), (rank + 1) * len(action))
    return noise[mine], time[mine]


def train_step(model, optimizer, batch):
    action, _ = batch
    noise, time = sample_noise_and_time(action)
    x_t = (1 - time[:, None]) * noise + time[:, None] * action
    optimizer.zero_grad()
    loss(model(x_t, time), action - noise).backward()
    optimizer.step()
