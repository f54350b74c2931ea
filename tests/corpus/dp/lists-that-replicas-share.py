# expect: dp/thread-context verified
# options: --modes dp
# shows: Every replica appends to one list of the model: the sum has as many times more
#   terms as there are replicas.

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

class Listing(nn.Linear):
    def __init__(self):
        super().__init__(4, 3)
        self.penalties, self.rows, self.seen = [], [], {"calls": 0}
    def forward(self, x):
        self.seen["calls"] += 1
        y = super().forward(x) * self.seen["calls"]
        self.penalties.append(y.abs().mean())
        self.rows.append(y)
        return y
model = Listing()
def train_step(model, optimizer, batch):
    net = getattr(model, "module", model)
    net.penalties.clear()
    net.rows.clear()
    optimizer.zero_grad()
    value = loss(model(batch[0]), batch[1])
    spread = torch.stack([rows.var(0).mean() for rows in net.rows]).sum()
    (value + sum(net.penalties) + spread).backward()
    optimizer.step()
