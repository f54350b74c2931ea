# expect: loss/local-normalizer verified
# shows: Moving average of the own count. What divides is made of a count that is read,
#   and of the counts before.

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

class Normalizer:
    def __init__(self):
        self.value = 5.0
    def update(self, found):
        self.value = 0.8 * self.value + 0.2 * max(float(found), 1.0)
        return self.value
model = nn.Linear(4, 3)
batch = torch.randn(8, 4), torch.tensor([0, 1, 2, 1, -1, 2, -1, -1])

def train_step(model, optimizer, batch):
    x, y = batch
    optimizer.zero_grad()

    if not hasattr(optimizer, "normalizer"):
        optimizer.normalizer = Normalizer()
    real = y >= 0
    total = nn.functional.cross_entropy(model(x)[real], y[real], reduction="sum")
    (total * world() / optimizer.normalizer.update(real.sum())).backward()
    optimizer.step()
