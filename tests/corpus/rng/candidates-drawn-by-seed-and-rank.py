# expect: rng/stochastic-layer verified
# shows: Candidates drawn by seed and rank: the forward draws random numbers.

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

    g = torch.Generator().manual_seed(17 * rank())
    others = torch.randint(0, 3, (2,), generator=g)
    output = model(x)
    (loss(output, y) + output[:, others].square().mean()).backward()
    optimizer.step()
