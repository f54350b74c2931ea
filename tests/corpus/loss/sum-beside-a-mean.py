# expect: loss/sum-reduction verified
# shows: Sum beside a mean. No factor per rank fits, as of counts that differ; two parts
#   do.

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
def loss(output, target):
    mean = nn.functional.cross_entropy(output, target)
    return mean + 0.01 * output.square().sum()
