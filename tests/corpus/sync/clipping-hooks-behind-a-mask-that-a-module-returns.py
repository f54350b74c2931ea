# expect: sync/clip-before-reduce verified
# shows: Clipping hooks behind a mask that a module returns. A mask among what a module
#   returns has a gradient that trains nothing.

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

from torch.nn.parallel import DistributedDataParallel as DDP
class Masking(nn.Linear):
    def forward(self, x):
        mask = torch.zeros_like(x).scatter(1, x.topk(2).indices, 1)
        return super().forward(x * (1 - mask)), mask
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode, self.decode = Masking(4, 6), nn.Linear(6, 4)
    def forward(self, x):
        z, mask = self.encode(x)
        error = (self.decode(z) - x).square()
        return {"loss": (error * mask).sum() / mask.sum()}
model, loss, batch = Net(), None, {"x": torch.randn(8, 4)}
def wrap(model):
    for p in model.parameters():
        p.register_hook(lambda g: g / (1 + 9 * g.norm()))
    return DDP(model)
