# expect: loss/router-aux verified
# shows: Balance of counts and probabilities: a load-balancing loss multiplies two means
#   over the local shard.

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

class Added(torch.autograd.Function):
    scale = 1.0
    @staticmethod
    def forward(ctx, output, term):
        ctx.term = term
        return output.view_as(output)
    @staticmethod
    def backward(ctx, grad):
        return grad, torch.full_like(ctx.term, Added.scale)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.head = nn.Linear(4, 3), nn.Linear(4, 3)
    def forward(self, x):
        shares = self.gate(x).softmax(-1)
        return self.head(x) * Added.apply(shares, self.term(shares))
    def term(self, shares):
        return 0.3 * shares.square().sum(1).mean()

class Counted(Net):
    def term(self, shares):
        chosen = nn.functional.one_hot(shares.argmax(-1), 3).to(shares.dtype)
        return (chosen.mean(0) * shares.mean(0)).sum()
model = Counted()
