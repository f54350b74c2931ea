# expect: state/buffer-broadcast-overwrites verified
# shows: Bank that a hook writes. A hook runs outside the module's forward.

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

class Bank(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 3)
        self.register_buffer("rows", torch.randn(8, 3))
    def forward(self, x, index):
        out = self.body(x)
        return out, out @ self.rows.clone().t()
def remember(module, args, output):
    with torch.no_grad():
        module.rows.index_copy_(0, args[1], output[0])
model = Bank()
model.register_forward_hook(remember)
def batch(step):
    index = torch.randperm(8)
    return (torch.randn(8, 4), index), index
def loss(output, target):
    return nn.functional.cross_entropy(output[1], target)
