# expect: loss/missing-world-scale verified
# shows: Features get the gradient of their rows alone. Class centres that every rank
#   holds: their gradient, by hand, is that of all rows.

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
        self.body, self.centres = nn.Linear(4, 5), nn.Parameter(torch.randn(3, 5))
    def forward(self, x):
        return self.body(x)
model = Net()
def wrap(model):
    model.body = DDP(model.body)
    return model
batch = (torch.randn(8, 4), torch.arange(8) % 3)
def gathered(x):
    if not dist.is_initialized():
        return x.clone()
    parts = [torch.empty_like(x) for _ in range(world())]
    dist.all_gather(parts, x.contiguous())
    return torch.cat(parts)

def train_step(model, optimizer, batch):
    x, y = batch
    optimizer.zero_grad()

    features = model(x)
    every = gathered(features.detach()).requires_grad_()
    nn.functional.cross_entropy(every @ model.centres.T, gathered(y)).backward()
    first = (dist.get_rank() if dist.is_initialized() else 0) * len(x)
    features.backward(every.grad[first : first + len(x)])
    optimizer.step()
