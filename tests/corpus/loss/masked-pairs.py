# expect: loss/local-normalizer verified
# shows: Masked pairs. Pairs stay pairs in another order of shards: only their number
#   differs.

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

model = nn.Linear(4, 1)
batch = torch.randn(16, 4), torch.tensor([1, 1, 0, 0, 1, 1, 1, 1, 1, 1] + [0] * 6)
def loss(output, target):
    r = output.squeeze(-1)
    valid = target[0::2].double()
    values = nn.functional.softplus(r[1::2] - r[0::2]) + 0.1 * r[0::2].square()
    return (values * valid).sum() / valid.sum() + 0.1 * r.mean()
