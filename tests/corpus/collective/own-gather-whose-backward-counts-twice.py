# expect: collective/backward-double-count verified
# shows: Own gather whose backward counts twice. Its backward sums over ranks, and takes
#   the world size as well; beside a mean.

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

class Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows):
        parts = [torch.empty_like(rows) for _ in range(world())]
        dist.all_gather(parts, rows.contiguous())
        return torch.cat(parts)
    @staticmethod
    def backward(ctx, grad):
        grad = grad.clone()
        dist.all_reduce(grad)
        return grad.chunk(world())[rank()] * world()
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.probe = nn.Linear(4, 3), nn.Linear(4, 3)
    def forward(self, x):
        return self.body(x).tanh(), self.probe(x)
model = Net()
def loss(output, target):
    rows, logits = output
    rows = Gather.apply(rows) if dist.is_initialized() else rows
    spread = (1 - rows.std(0)).relu().mean()
    return 3 * spread + nn.functional.cross_entropy(logits, target)
