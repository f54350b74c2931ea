# expect: graph/reentrant-checkpoint verified
# shows: Backward of reversible layers. Reversible layers compute their inputs anew in
#   backward, by a backward of their own; the seed that they draw for it makes no noise.

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

class Reversed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, layers):
        ctx.layers = layers
        torch.randint(9, (1,))
        with torch.no_grad():
            for layer in layers:
                x = x + layer(x)
        ctx.save_for_backward(x)
        return x
    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        for layer in reversed(ctx.layers):
            with torch.no_grad():
                before = x
                for _ in range(80):
                    before = x - layer(before)
            x = before
            with torch.enable_grad():
                leaf = x.detach().requires_grad_()
                layer(leaf).backward(grad)
            grad = grad + leaf.grad
        return grad, None
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))
        for layer in self.layers:
            nn.init.uniform_(layer.weight, -0.05, 0.05)
        self.start, self.head = nn.Linear(4, 4), nn.Linear(4, 3)
    def forward(self, x):
        return self.head(Reversed.apply(self.start(x), self.layers))
model = Net()
def wrap(model):
    return DDP(model, find_unused_parameters=True)
