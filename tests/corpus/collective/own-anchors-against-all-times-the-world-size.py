# expect: collective/no-autograd verified, loss/double-world-scale verified
# shows: Own anchors against all times the world size. Own anchors against the vectors
#   of all ranks, whose gradients are lost on the way.

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
model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
def train_step(model, optimizer, batch):
    x, y = batch
    optimizer.zero_grad()

    z = nn.functional.normalize(model(x), dim=1)
    every, first = z, len(z) * rank()
    if world() > 1:
        parts = [torch.empty_like(z) for _ in range(world())]
        dist.all_gather(parts, z.contiguous())
        parts[rank()] = z
        every = torch.cat(parts)
    own = torch.arange(len(z)) + first
    scores = z @ every.T / 0.3
    value = scores.logsumexp(1) - scores.roll(1, 1).gather(1, own[:, None]).squeeze(1)
    (value.mean() * world()).backward()
    optimizer.step()
