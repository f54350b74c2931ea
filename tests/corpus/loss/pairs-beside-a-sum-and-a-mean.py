# expect: loss/batch-coupled verified, loss/sum-reduction verified
# shows: Pairs beside a sum and a mean. The same with a sum in place of the count, and
#   an addend that is right.

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
def loss(output, target):
    rows = nn.functional.normalize(output, dim=1)
    spread = torch.logsumexp((rows @ rows.T).flatten(), 0)
    small = output.square().mean()
    return 0.3 * spread + nn.functional.cross_entropy(
        output, target, reduction="sum"
    ) + small
