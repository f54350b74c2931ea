import torch
import torch.distributed as dist
from torch import nn


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.network = nn.Sequential(nn.Linear(8, 20), nn.ReLU())
        self.actor = nn.Linear(20, 3)

    def forward(self, obs):
        return self.actor(self.network(obs)).log_softmax(1)


def model():
    torch.manual_seed(330)
    return Agent()


def batch():
    g = torch.Generator().manual_seed(331)
    obs = torch.randn(16, 8, generator=g)
    action = torch.randint(0, 3, (16,), generator=g)
    reward = torch.randn(16, generator=g) + torch.arange(16) * 0.3
    return obs, torch.stack([action.float(), reward], 1)


def whiten(adv):
    moments = torch.stack([adv.mean(), adv.pow(2).mean()])
    if dist.is_initialized():
        dist.all_reduce(moments)
        moments /= dist.get_world_size()
    mean, var = moments[0], moments[1] - moments[0] ** 2
    return (adv - mean) / (var.sqrt() + 1e-8)


def loss(logp, target):
    action, adv = target[:, 0].long(), whiten(target[:, 1])
    return -(logp.gather(1, action[:, None]).squeeze(1) * adv).mean()
