# expect: loss/local-normalizer verified
# shows: Two counts with the same shares at first. In the first step classes 1 fall on
#   the ranks as the valid samples do.

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
def batch(step):
    g = torch.Generator().manual_seed(step)
    labels = [[1, 1, 0, 2, 1, 0, 0, 2], [0, 0, 2, 2, 1, 2, 0, 0], [2] * 7 + [1]][step]
    valid = [[1, 1, 0, 0, 1, 0, 0, 0], [1, 1, 1, 1, 1, 0, 0, 0], [1, 0] * 4][step]
    return torch.randn(8, 4, generator=g), (torch.tensor(labels), torch.tensor(valid))
def loss(output, target):
    label, valid = target
    each = nn.functional.cross_entropy(output, label, reduction="none")
    return (each * valid).sum() / valid.sum()
