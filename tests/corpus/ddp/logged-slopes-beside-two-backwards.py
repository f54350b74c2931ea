# expect: ddp/multi-backward verified
# shows: Logged slopes beside two backwards. The slopes are for a log; what is not
#   reduced comes from the second backward.

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
        self.body, self.a, self.b = nn.Linear(4, 8), nn.Linear(8, 3), nn.Linear(8, 3)
    def forward(self, x):
        h = self.body(x).tanh()
        return self.a(h), self.b(h)
model = Net()
wrap = lambda model: DDP(model, find_unused_parameters=True)

def train_step(model, optimizer, batch):
    x, y = batch
    optimizer.zero_grad()

    a, b = model(x)
    first, second = loss(a, y), b.square().mean()
    shared = getattr(model, "module", model).body.weight
    torch.autograd.grad(first, shared, retain_graph=True)
    first.backward(retain_graph=True)
    second.backward()
    optimizer.step()
