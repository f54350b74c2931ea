# expect: rng/stochastic-layer verified
# shows: Samples mixed by a generator of numpy. numpy's generator, seeded by rank: one
#   process repeats itself.

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

import numpy as np
model = nn.Linear(4, 3)
calls = []
def train_step(model, optimizer, batch):
    x, y = batch
    calls.append(0)
    rng = np.random.default_rng(100 * len(calls) + rank())
    share, other = rng.beta(0.4, 0.4), torch.from_numpy(rng.permutation(len(x)))
    hot = nn.functional.one_hot(y, 3).to(x.dtype)
    mixed = share * hot + (1 - share) * hot[other]
    optimizer.zero_grad()
    loss(model(share * x + (1 - share) * x[other]), mixed).backward()
    optimizer.step()
