# expect: loss/double-world-scale verified
# shows: Mean of equal shards times the ranks. Every rank has the same loss because it has
#   the same samples; what is reduced is a count for a log.

import torch
import torch.distributed as dist
from torch import nn

torch.manual_seed(0)
batch = torch.randn(4, 4).repeat(2, 1), torch.arange(4).repeat(2) % 3
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
counts = []

def loss(output, target):
    count, world = torch.tensor(len(target)), 1
    if dist.is_initialized():
        dist.all_reduce(count)
        world = dist.get_world_size()
    counts.append(int(count))
    return nn.functional.cross_entropy(output, target) * world
