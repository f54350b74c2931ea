# expect: collective/layout verified
# shows: Embeddings reduced where they are to be gathered. Rows of unrelated samples are
#   added up, where they belong side by side.

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

model = nn.Linear(4, 5)
def loss(output, target):
    z = output.clone()
    if dist.is_initialized():
        dist.all_reduce(z)
    z = z - z.mean(0)
    spread = torch.relu(1 - (z.square().mean(0) + 1e-4).sqrt()).mean()
    return output.square().mean() + spread
