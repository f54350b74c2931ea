# expect: state/ema-teacher-divergence verified
# shows: Target copied in the second step by the first rank. A copy by one rank alone,
#   and not in the first step.

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

import copy
class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.online, self.steps = nn.Linear(4, 3), 0
        self.target = copy.deepcopy(self.online).requires_grad_(False)
    def forward(self, x):
        return self.online(x), self.target(x)
model = Agent()
batch = torch.randn(8, 4), torch.zeros(8)
def train_step(model, optimizer, batch):
    optimizer.zero_grad()
    ours, theirs = model(batch[0])
    (ours - 0.9 * theirs - 1).square().mean().backward()
    optimizer.step()
    net = getattr(model, "module", model)
    net.steps += 1
    if net.steps == 2 and rank() == 0:
        net.target.load_state_dict(net.online.state_dict())
