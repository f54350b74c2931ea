# expect: loss/accum-normalizer verified
# shows: Chunks of a number that a shard has not. One process has micro-batches of 3, 3,
#   2 samples, and each rank two of 2: those of a rank have one factor, which no count
#   of its shard explains.

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
    optimizer.zero_grad()
    for x, y in zip(batch[0].chunk(3), batch[1].chunk(3)):
        (nn.functional.cross_entropy(model(x), y) / 3).backward()
    optimizer.step()
