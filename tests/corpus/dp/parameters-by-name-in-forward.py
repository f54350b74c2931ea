# expect: dp/replica-parameters-empty verified
# options: --modes dp
# shows: Each sample has weights of its own, made from the parameters by name, and
#   replicas of DataParallel have none.

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

from torch.func import functional_call, grad, vmap
class Adapted(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(4, 3)
    def forward(self, x):
        call = lambda weights, row: functional_call(self.net, weights, (row,))
        def adapted(row):
            weights = dict(self.net.named_parameters())
            slope = grad(lambda w: call(w, row.flip(0)).square().sum())(weights)
            return call({n: w - 0.1 * slope[n] for n, w in weights.items()}, row)
        return vmap(adapted)(x)
model = Adapted()
