# expect: state/forward-writes-parameter verified
# shows: Actnorm that notes it is initialised. Initialised by the first shard; booleans
#   are buffers, too.

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
    def __init__(self, n):
        super().__init__()
        self.register_buffer("initialized", torch.tensor(False))
        self.log_scale = nn.Parameter(torch.zeros(n))
        self.shift = nn.Parameter(torch.zeros(n))
    def forward(self, x):
        if self.training and not self.initialized:
            self.log_scale.data = -x.detach().std(0).log()
            self.shift.data = -(x.detach() / x.detach().std(0)).mean(0)
            self.initialized.data = torch.tensor(True)
        return self.log_scale.exp() * x + self.shift
model = nn.Sequential(ActNorm(4), nn.Linear(4, 5), ActNorm(5), nn.Linear(5, 3))
