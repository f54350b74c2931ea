# expect: state/forward-writes-parameter verified
# shows: Parameters initialised by a method of a part. A flow runs backwards in
#   training: no hook of its norm is called.

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

class ActNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale, self.shift = (nn.Parameter(t(1, 4)) for t in (torch.zeros,) * 2)
        self.is_new = True
    def inverse(self, z):
        if self.is_new:
            self.scale.data = (z.std(0, keepdim=True) + 1e-6).log()
            self.shift.data = z.mean(0, keepdim=True)
            self.is_new = False
        return (z - self.shift) / self.scale.exp(), -self.scale.sum()
class Flow(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.mix = ActNorm(), nn.Linear(4, 4)
    def forward(self, x):
        z, volume = self.norm.inverse(x)
        return (0.5 * self.mix(z).square().sum(1) - volume).mean()
model = Flow()
def loss(output, target):
    return output
