# expect: loss/missing-world-scale verified, loss/local-normalizer verified
# shows: Count of all without its factor beside a count. One term is divided by what all
#   ranks count, the other by what each does.

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

model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
batch = torch.randn(8, 4), torch.tensor([0, -100, 2, -100, 1, 2, 0, 1])

def train_step(model, optimizer, batch):
    x, y = batch
    optimizer.zero_grad()

    output, kept = model(x), y != -100
    count = kept.sum()
    if dist.is_initialized():
        dist.all_reduce(count)
    fit = nn.functional.cross_entropy(output, y, reduction="sum") / count
    (fit + 0.1 * output.logsumexp(1)[kept].square().mean()).backward()
    optimizer.step()
