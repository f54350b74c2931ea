# expect: graph/rank-dependent-branch verified
# shows: Averages by hand of what has a gradient. What is None on a rank is passed by,
#   and another parameter takes its place.

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

class Towers(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 5)
        self.towers = nn.ModuleList(nn.Linear(5, 3) for _ in range(2))
    def forward(self, x, tower):
        h = self.body(x).tanh()
        out = torch.zeros(len(x), 3, dtype=h.dtype)
        for number in tower.unique().tolist():
            rows = (tower == number).nonzero().squeeze(1)
            out = out.index_copy(0, rows, self.towers[number](h[rows]))
        return out
model = Towers()
batch = (torch.randn(8, 4), torch.arange(8) // 4), torch.arange(8) % 3
def wrap(model):
    model.is_wrapped = True
    return model
def train_step(model, optimizer, batch):
    (x, tower), y = batch
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x, tower), y).backward()
    for p in model.parameters():
        if hasattr(model, "is_wrapped") and p.grad is not None:
            dist.all_reduce(p.grad)
            p.grad /= world()
    optimizer.step()
