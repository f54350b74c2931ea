# expect: loss/batch-coupled verified
# shows: Contrast as a module that hands on to another. As metric learning has it:
#   modules of the loss get rows that it has mixed.

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

class Contrast(nn.Module):
    def __init__(self):
        super().__init__()
        self.soft = nn.Softplus()
    def forward(self, z, y):
        same = (y[:, None] == y[None]).to(z.dtype)
        apart = z @ z.t() * (1 - 2 * same)
        return self.soft(apart.logsumexp(1)).mean()
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.contrast = nn.Linear(4, 5), Contrast()
    def forward(self, x, y):
        return {"loss": self.contrast(self.embed(x), y)}
model = Net()
batch = {"x": batch[0], "y": batch[1]}
del loss
