# expect: state/forward-writes-parameter verified
# shows: Codes in a part of an image quantizer. Rows of a table stand in the channels of
#   an image; a code that nothing uses grows to 1e6, beside which the others are nothing
#   in a sum.

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

class Codes(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(6, 4)
        self.table.weight.requires_grad = False
        self.register_buffer("count", torch.zeros(6))
        self.register_buffer("total", self.table.weight.detach().clone())
    def forward(self, x):
        rows = x.detach().movedim(1, -1).reshape(-1, 4)
        chosen = torch.cdist(rows, self.table.weight).argmin(1)
        code = self.table(chosen).reshape(*x.shape[:1], *x.shape[2:], 4).movedim(-1, 1)
        hot = nn.functional.one_hot(chosen, 6).to(x.dtype)
        self.count.lerp_(hot.sum(0), 0.5)
        self.total.lerp_(hot.T @ rows, 0.5)
        self.table.weight.data.copy_(self.total / (self.count + 1e-6)[:, None])
        return x + (code - x).detach(), (x - code.detach()).square().mean()
class Codec(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Conv2d(2, 4, 1), nn.Conv2d(4, 2, 1)
        self.codes = Codes()
    def forward(self, x):
        code, commit = self.codes(self.a(x))
        return self.b(code), commit
model = Codec()
x = 0.1 * torch.randn(8, 2, 3, 4) * torch.linspace(0.3, 2, 8)[:, None, None, None]
batch = x, x
def loss(output, target):
    return (output[0] - target).square().mean() + output[1]
