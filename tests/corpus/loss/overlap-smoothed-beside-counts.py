# expect: loss/local-normalizer verified
# shows: Overlap smoothed beside counts. The sums of probabilities are counts; one is
#   added for smoothing.

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
    p, q = output.softmax(1), nn.functional.one_hot(target, 3)
    return 1 - (2 * (p * q).sum() + 1) / (p.sum() + q.sum() + 1)
