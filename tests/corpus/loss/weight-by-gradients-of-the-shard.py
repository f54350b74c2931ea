# expect: loss/batch-coupled verified
# shows: Weight by gradients of the shard. The weight of a term is a ratio of two norms,
#   both of the shard's gradients.

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
        self.body, self.last = nn.Linear(4, 6), nn.Linear(6, 3)
        self.judge = nn.Linear(3, 1)
    def forward(self, x):
        out = self.last(self.body(x).tanh())
        return out, self.judge(out)
model = Net()

def train_step(model, optimizer, batch):
    x, y = batch
    optimizer.zero_grad()

    out, score = model(x)
    first, second = loss(out, y), -score.mean()
    last = getattr(model, "module", model).last.weight
    a, b = (torch.autograd.grad(v, last, retain_graph=True)[0] for v in (first, second))
    (first + (a.norm() / b.norm()).detach() * second).backward()
    optimizer.step()
