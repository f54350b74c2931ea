# expect: loss/double-world-scale verified, loss/local-normalizer verified
# shows: Mean of the shard times world beside a count of all. As a trainer does that
#   counts all tokens, beside a loss that counts its own.

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

model = nn.Linear(4, 3)
batch = torch.randn(8, 4), torch.tensor([0, 1, 2, -1, -1, 0, -1, -1])

def train_step(model, optimizer, batch):
    x, y = batch
    optimizer.zero_grad()

    count = (y >= 0).sum()
    if dist.is_initialized():
        dist.all_reduce(count)
    own = nn.functional.cross_entropy(model(x), y, ignore_index=-1, reduction="none")
    (own.sum() / (y >= 0).sum() * (count > 0) * world()).backward()
    optimizer.step()
