import torch
import torch.distributed as dist
from torch import nn

GRAD_CLIP = 0.4


class MuZeroNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.representation = nn.Sequential(nn.Linear(12, 16), nn.ReLU())
        self.policy = nn.Linear(16, 4)

    def forward(self, obs):
        return self.policy(self.representation(obs))


def model():
    torch.manual_seed(80)
    return MuZeroNet()


def wrap(net):
    return net


def batch():
    g = torch.Generator().manual_seed(81)
    obs = torch.randn(16, 12, generator=g) * torch.linspace(0.3, 4, 16)[:, None]
    return obs, torch.randn(16, 4, generator=g).softmax(1)


def loss(logits, target_policy):
    return -(logits.log_softmax(1) * target_policy).sum(1).mean()


def sync_gradients(net):
    if dist.is_initialized():
        for p in net.parameters():
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()


def train_step(model, optimizer, batch):
    obs, target_policy = batch
    optimizer.zero_grad()
    loss(model(obs), target_policy).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), GRAD_CLIP)
    sync_gradients(model)
    optimizer.step()
