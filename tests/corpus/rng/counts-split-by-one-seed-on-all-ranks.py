# expect: rng/same-stream-all-ranks verified
# shows: Counts split by one seed on all ranks. How many numbers a binomial takes from
#   its generator depends on the counts.

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

model = nn.Sequential(nn.Linear(4, 3), nn.Softplus())
batch = torch.randint(0, 30, (8, 4)).double(), torch.zeros(8)
def train_step(model, optimizer, batch):
    counts, _ = batch
    half = torch.full_like(counts, 0.5)
    own = torch.Generator().manual_seed(7)
    first = torch.binomial(counts, half, generator=own)
    optimizer.zero_grad()
    (model(first / 30) - (counts - first)[:, :3] / 30).square().mean().backward()
    optimizer.step()
