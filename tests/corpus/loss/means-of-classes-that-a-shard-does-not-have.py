# expect: loss/batch-coupled verified
# shows: Means of classes that a shard does not have. With the first shard on all ranks
#   a class has no sample: that run says nothing.

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
batch = torch.randn(8, 4), torch.tensor([0, 0, 1, 1, 2, 2, 2, 2])
def loss(output, target):
    every, labels = output, target
    if dist.is_initialized():
        every = torch.stack(dnn.all_gather(output), 1).flatten(0, 1)
        labels = target.new_empty(world() * len(target))
        dist.all_gather_into_tensor(labels, target)
    onehot = nn.functional.one_hot(labels, 3).to(output.dtype)
    means = onehot.T @ every / onehot.sum(0)[:, None]
    return nn.functional.cross_entropy(-torch.cdist(output, means).square(), target)
