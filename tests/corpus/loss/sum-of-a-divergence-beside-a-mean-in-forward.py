# expect: loss/sum-reduction verified
# shows: Sum of a divergence beside a mean in forward. In forward, behind modules of
#   their own: no output has both.

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
        self.encode, self.decode = nn.Linear(4, 2), nn.Linear(2, 4)
    def forward(self, x):
        code = self.encode(x)
        error = (self.decode(code) - x).square().mean()
        return {"loss": error + 0.1 * code.square().sum()}
model = Net()
batch = {"x": torch.randn(8, 4)}
loss = None
