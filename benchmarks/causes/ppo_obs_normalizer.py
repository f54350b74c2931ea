# expect: state/buffer-broadcast-overwrites
"""rl_games PR 363: running mean/std of observations updated from the local batch in forward."""

import torch
import torch.distributed as dist
from torch import nn


def world():
    return dist.get_world_size() if dist.is_initialized() else 1


def rank():
    return dist.get_rank() if dist.is_initialized() else 0


class RunningMeanStd(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.register_buffer("running_mean", torch.zeros(shape))
        self.register_buffer("running_var", torch.ones(shape))
        self.register_buffer("count", torch.ones(()))

    def forward(self, x):
        y = (x - self.running_mean) / torch.sqrt(self.running_var + 1e-5)
        if self.training:
            with torch.no_grad():
                mean, square, n = (
                    x.mean(0),
                    x.pow(2).mean(0),
                    torch.tensor(float(len(x)), dtype=x.dtype),
                )
                var = square - mean**2
                delta, total = mean - self.running_mean, self.count + n
                m2 = (
                    self.running_var * self.count
                    + var * n
                    + delta**2 * self.count * n / total
                )
                self.running_mean.add_(delta * n / total)
                self.running_var.copy_(m2 / total)
                self.count.copy_(total)
        return y.clamp(-5, 5)


class ActorCritic(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = RunningMeanStd(7)
        self.body = nn.Sequential(nn.Linear(7, 16), nn.ELU())
        self.mu, self.value = nn.Linear(16, 2), nn.Linear(16, 1)
        self.sigma = nn.Parameter(torch.zeros(2))

    def forward(self, obs):
        h = self.body(self.norm(obs))
        return self.mu(h), self.sigma.expand(len(obs), -1), self.value(h)[:, 0]


def model():
    torch.manual_seed(0)
    return ActorCritic()


def batch(step):
    g = torch.Generator().manual_seed(200 + step)
    obs = torch.randn(16, 7, generator=g) + torch.linspace(-2, 2, 16)[:, None]
    return obs, {
        "action": torch.randn(16, 2, generator=g),
        "old": torch.randn(16, generator=g) - 3,
        "adv": torch.randn(16, generator=g),
        "ret": torch.randn(16, generator=g),
    }


def loss(output, t):
    mu, log_sigma, value = output
    logp = torch.distributions.Normal(mu, log_sigma.exp()).log_prob(t["action"]).sum(-1)
    ratio = (logp - t["old"]).exp()
    actor = torch.max(-t["adv"] * ratio, -t["adv"] * ratio.clamp(0.8, 1.2)).mean()
    return actor + 0.5 * (value - t["ret"]).pow(2).mean() + 1e-3 * log_sigma.mean()


def optimizer(params):
    return torch.optim.SGD(params, lr=1e-2)
