# expect: loss/local-normalizer verified, loss/batch-coupled verified
# shows: Pairs beside a count. Pairs of the shard in one addend, and a count of the
#   shard in the other.

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
batch = torch.randn(8, 4), torch.tensor([0, -100, 2, -100, 1, 2, 0, 1])
def loss(output, target):
    rows = nn.functional.normalize(output, dim=1)
    spread = torch.logsumexp((rows @ rows.T).flatten(), 0)
    return nn.functional.cross_entropy(output, target) + 0.3 * spread
