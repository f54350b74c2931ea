# expect: dp/scatter-semantics verified
# options: --modes dp
# shows: A list with a number for each sample is given to forward, and every replica
#   gets all of it.

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

class Pooled(nn.Linear):
    def forward(self, x, lengths):
        y = super().forward(x)
        return torch.stack([row[:n].mean(0) for row, n in zip(y, lengths)])
model = Pooled(4, 3)
batch = torch.randn(8, 5, 4), torch.arange(8) % 3
def train_step(model, optimizer, batch):
    x, y = batch
    optimizer.zero_grad()
    loss(model(x, [1 + n for n in y.tolist()]), y).backward()
    optimizer.step()
