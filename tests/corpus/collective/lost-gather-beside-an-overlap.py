# expect: collective/no-autograd verified, loss/batch-coupled verified
# shows: Lost gather beside an overlap. Beside what is mended already the second is a
#   part as well.

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
        self.a, self.b, self.head = nn.Linear(4, 5), nn.Linear(4, 5), nn.Linear(4, 1)
    def forward(self, x):
        return self.a(x), self.b(x), self.head(x).squeeze(1).sigmoid()
model = Net()
batch = torch.randn(8, 4), torch.tensor([0.0, 1, 1, 0, 0, 0, 1, 0])
def rows_of_all(x):
    if not dist.is_initialized():
        return x
    rows = [torch.empty_like(x) for _ in range(world())]
    dist.all_gather(rows, x)
    return torch.cat(rows)
def loss(output, target):
    a, b, p = output
    a, b = rows_of_all(a), rows_of_all(b)
    contrast = nn.functional.cross_entropy(a @ b.t(), torch.arange(len(a)))
    return contrast + 1 - 2 * (p * target).sum() / (p.sum() + target.sum())
