# expect: sync/clip-norm-overreduced verified
# shows: Norm of the critic that is summed over ranks. One of two networks is clipped;
#   the other's gradients are wrong by its weights.

import torch
import torch.distributed as dist
import torch.distributed.nn.functional as dnn
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

def world():
    return dist.get_world_size() if dist.is_initialized() else 1

def rank():
    return dist.get_rank() if dist.is_initialized() else 0

torch.manual_seed(0)
batch = torch.randn(8, 4), torch.arange(8) % 3
loss = nn.CrossEntropyLoss()

class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.maker = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
        self.critic = nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 1))
    def forward(self, x, real):
        made = self.maker(x) if real is None else real
        return self.critic(made)
model = Pair()
batch = torch.randn(8, 4), torch.randn(8, 3)
def wrap(model):
    return DDP(model, find_unused_parameters=True)
def train_step(model, optimizer, batch):
    x, real = batch
    net = getattr(model, "module", model)
    optimizer.zero_grad()
    (model(x, real) - 1).square().mean().backward()
    with torch.no_grad():
        norm = sum(p.grad.square().sum() for p in net.critic.parameters())
        if world() > 1:
            dist.all_reduce(norm)
        for p in net.critic.parameters():
            p.grad *= (0.1 / norm.sqrt()).clamp(max=1)
    optimizer.step()
    optimizer.zero_grad()
    net.critic.requires_grad_(False)
    (model(x, None) - 1).square().mean().backward()
    net.critic.requires_grad_(True)
    optimizer.step()
