# expect: loss/local-normalizer verified
# shows: Two means of edges within the model. Edges and their absence, each a mean of
#   its own, and indices made of the shard.

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

class Edges(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(4, 3)
    def forward(self, x, kinds):
        index = torch.arange(len(x)) ^ 1
        z = self.embed(x)[index]
        near, far = z[kinds == 0], z[kinds != 0]
        return near.square().mean() - far.sigmoid().log().mean()
model = Edges()
batch = (torch.randn(8, 4), torch.tensor([0, 0, 0, 1, 1, 1, 1, 0])), torch.zeros(8)
loss = lambda output, _: output
