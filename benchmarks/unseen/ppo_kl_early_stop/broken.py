import torch
import torch.distributed as dist
from torch import nn

TARGET_KL, PPO_EPOCHS = 0.3, 4


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 24), nn.Tanh())
        self.logits = nn.Linear(24, 4)

    def forward(self, obs):
        return self.logits(self.body(obs)).log_softmax(1)


def model():
    torch.manual_seed(320)
    return Policy()


def batch():
    g = torch.Generator().manual_seed(321)
    obs = torch.randn(16, 6, generator=g) * torch.linspace(0.2, 3.5, 16)[:, None]
    return obs, torch.randint(0, 4, (16,), generator=g), torch.randn(16, generator=g)


def loss(logp, target):
    old_logp, adv = target
    ratio = (logp - old_logp).exp()
    return -torch.min(ratio * adv, ratio.clamp(0.8, 1.2) * adv).mean()


def should_stop(kl):
    return bool(kl > 1.5 * TARGET_KL)


def train_step(model, optimizer, batch):
    obs, action, adv = batch
    old = None
    for _ in range(PPO_EPOCHS):
        logp = model(obs).gather(1, action[:, None]).squeeze(1)
        old = logp.detach() if old is None else old
        policykl = (old - logp.detach()).pow(2).mean() / 2
        if should_stop(policykl):
            break
        optimizer.zero_grad()
        loss(logp, (old, adv)).backward()
        optimizer.step()


def optimizer(params):
    return torch.optim.SGD(params, lr=1.0)
