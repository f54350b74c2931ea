# expect: loss/missing-world-scale verified
# shows: Own rows of the gradient of all. No cut is seen through two backwards, and yet
#   all gradients have one factor.

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

model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
batch = torch.randn(8, 4), torch.zeros(8)
def train_step(model, optimizer, batch):
    with torch.no_grad():
        own = everyone = model(batch[0])
    start = rank() * len(own)
    if dist.is_initialized():
        parts = [torch.empty_like(own) for _ in range(world())]
        dist.all_gather(parts, own)
        everyone = torch.cat(parts)
    everyone = everyone.detach().requires_grad_()
    (everyone @ everyone.T).logsumexp(1).mean().backward()
    optimizer.zero_grad()
    (model(batch[0]) * everyone.grad[start : start + len(own)]).sum().backward()
    optimizer.step()
