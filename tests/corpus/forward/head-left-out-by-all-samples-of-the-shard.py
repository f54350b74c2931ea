# expect: forward/batch-coupled verified
# shows: Head left out by all samples of the shard. Where all samples are near, the far
#   head is left out.

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

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.near, self.far = nn.Linear(4, 3), nn.Linear(4, 3)
    def forward(self, x):
        heads = [self.near] if (x.norm(dim=1) < 1).all() else [self.near, self.far]
        return [head(x) for head in heads]
model = Net()
def wrap(model):
    return DDP(model, find_unused_parameters=True)
batch = torch.randn(8, 4) * torch.tensor([9.0] * 4 + [0.01] * 4)[:, None], batch[1]
def loss(output, target):
    each = [nn.functional.cross_entropy(o, target) for o in output]
    return sum(each) / len(each)
