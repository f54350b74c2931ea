# expect: loss/local-normalizer verified
# shows: Weights of classes of which one is 0. A class that all samples of a shard have
#   weighs nothing there: a count divides.

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

model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
target = torch.tensor([[1, 0], [1, 1], [1, 0], [1, 1], [0, 0], [1, 1], [0, 0], [1, 1]])
batch = torch.randn(8, 4), target
def loss(output, target):
    share = target.double().mean(0)
    weight = torch.where(target > 0, 1 - share, share)
    return nn.functional.binary_cross_entropy_with_logits(
        output, target.to(output), weight.to(output)
    )
