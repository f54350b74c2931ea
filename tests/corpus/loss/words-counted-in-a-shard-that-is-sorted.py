# expect: loss/local-normalizer verified
# shows: Words counted in a shard that is sorted. The step sorts by length, and a shard
#   is sorted otherwise than the batch.

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
batch = torch.randn(8, 5, 4), torch.tensor([2, 1, 2, 3, 5, 4, 5, 3])
def train_step(model, optimizer, batch):
    x, lengths = batch
    lengths, order = lengths.sort(descending=True, stable=True)
    out = model(x[order])
    valid = torch.arange(5) < lengths[:, None]
    optimizer.zero_grad()
    (out - 1).square().mean(2)[valid].mean().backward()
    optimizer.step()
