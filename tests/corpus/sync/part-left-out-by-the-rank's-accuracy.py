# expect: sync/control-desync verified
# shows: Part left out by the rank's accuracy. A step that the critic of the rank's own
#   shard need not learn from.

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
        self.made, self.critic = nn.Linear(4, 4), nn.Linear(4, 1)
model = Pair()
batch = torch.randn(8, 4), 2 * torch.linspace(-1, 1, 8)[:, None] + torch.randn(8, 4)
def wrap(model):
    model.made, model.critic = DDP(model.made), DDP(model.critic)
    return model
def train_step(model, optimizer, batch):
    noise, real = batch
    optimizer.zero_grad()
    fake = model.made(noise)
    scores = model.critic(torch.cat([real, fake.detach()]))
    softplus = nn.functional.softplus
    on_real, on_fake = scores.chunk(2)
    (softplus(-on_real) + softplus(on_fake)).mean().backward()
    if (on_real > 0).double().mean() > 0.5:
        for p in model.critic.parameters():
            p.grad = None
    model.critic.requires_grad_(False)
    softplus(-model.critic(fake)).mean().backward()
    model.critic.requires_grad_(True)
    optimizer.step()
