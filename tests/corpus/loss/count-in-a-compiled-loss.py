# expect: loss/local-normalizer verified
# shows: Count in a compiled loss. What is compiled takes no hooks; probes run it as it
#   is written.

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

def focal(output, target, positives):
    p = output.sigmoid()
    each = nn.functional.binary_cross_entropy_with_logits(
        output, target, reduction="none"
    )
    return ((1 - p * target) ** 2 * each).sum() / positives
fused = torch.compile(focal, backend="eager")
model = nn.Linear(4, 3)
target = torch.zeros(24)
target[[0, 4, 13, 15, 16, 20, 23]] = 1.0
batch = torch.randn(8, 4), target.reshape(8, 3)
def loss(output, target):
    target = target.to(output.dtype)
    return fused(output, target, target.sum().clamp(min=1))
