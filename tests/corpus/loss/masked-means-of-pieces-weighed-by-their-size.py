# expect: loss/accum-normalizer verified
# shows: Masked means of unequal pieces, each weighed by its samples and not by those that
#   count: no count is the divisor, but each piece has its own.

import torch
import torch.distributed as dist
from torch import nn

def world():
    return dist.get_world_size() if dist.is_initialized() else 1

torch.manual_seed(0)
batch = torch.randn(16, 4), torch.arange(16) % 3
batch[1][[2, 5, 6, 13]] = -100
loss = nn.CrossEntropyLoss()
model = nn.Linear(4, 3)

def train_step(model, optimizer, batch):
    x, y = batch
    optimizer.zero_grad()
    first = 10 if len(x) > 10 else 5
    for a, b in ((x[:first], y[:first]), (x[first:], y[first:])):
        (loss(model(a), b) * len(b) / len(y)).backward()
    optimizer.step()
