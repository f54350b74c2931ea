# expect: ddp/frozen-after-wrap verified
# shows: Networks in one wrapper frozen in turn. Each of two networks waits for the
#   other's gradients, in one DDP object.

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
        self.generator, self.critic = nn.Linear(4, 4), nn.Linear(8, 1)
    def forward(self, x, real=None):
        fake = self.generator(x)
        told = fake if real is None else fake.detach()
        judged = self.critic(torch.cat([x, told], 1))
        return judged if real is None else judged - self.critic(torch.cat([x, real], 1))
model = Pair()
wrap = DDP
def train_step(model, optimizer, batch):
    x, inner = batch[0], getattr(model, "module", model)
    for of_critic in (True, False):
        inner.critic.requires_grad_(of_critic)
        inner.generator.requires_grad_(not of_critic)
        optimizer.zero_grad()
        judged = model(x, x.flip(1)) if of_critic else -model(x)
        nn.functional.softplus(judged).mean().backward()
        optimizer.step()
