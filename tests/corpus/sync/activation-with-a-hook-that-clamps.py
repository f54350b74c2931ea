# expect: sync/clip-before-reduce verified
# shows: Activation with a hook that clamps. Of a mean over the shard: W times what it
#   is in one process, and so is clipped.

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
        self.body, self.head = nn.Linear(4, 8), nn.Linear(8, 3)
    def forward(self, x):
        h = self.body(x).tanh()
        if h.requires_grad:
            h.register_hook(lambda grad: grad.clamp(-0.01, 0.01))
        return self.head(h)
model = Net()
