# expect: graph/opaque-output
"""Actor-critic; the actor returns a distribution. The critic is off in behaviour cloning epochs."""

import torch
import torch.distributions as D
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class ActorCritic(nn.Module):
    def __init__(self, observations=5, actions=2, width=16):
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(observations, width),
            nn.Tanh(),
            nn.Linear(width, width),
            nn.Tanh(),
        )
        self.mean = nn.Linear(width, actions)
        self.log_std = nn.Parameter(torch.full((actions,), -0.5))
        self.value = nn.Linear(width, 1)

    def forward(self, obs):
        h = self.body(obs)
        scale = self.log_std.exp().expand(len(obs), -1)
        return D.Independent(D.Normal(self.mean(h), scale), 1)


def model():
    torch.manual_seed(4)
    return ActorCritic()


def wrap(model):
    return DistributedDataParallel(model, find_unused_parameters=True)


def batch(step):
    g = torch.Generator().manual_seed(step + 5)
    obs = torch.randn(16, 5, generator=g)
    return obs, torch.tanh(obs[:, :2] - obs[:, 2:4])


def loss(output, target):
    policy = output
    return -(policy.log_prob(target) + 0.01 * policy.entropy()).mean()


def optimizer(params):
    return torch.optim.RMSprop(params, lr=1e-3)
