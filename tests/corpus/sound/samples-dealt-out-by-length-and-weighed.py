# expect: equivalent
# shows: The step gives ranks unequal numbers of samples and weights each rank's mean by
#   its share.

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

model = nn.Linear(4, 1)
length = torch.tensor([8, 1, 2, 1, 3, 1, 1, 1])
batch = torch.randn(8, 4), torch.randn(8), length
def gathered(t):
    if world() == 1:
        return t
    parts = [torch.empty_like(t) for _ in range(world())]
    dist.all_gather(parts, t)
    return torch.cat(parts)
def train_step(model, optimizer, batch):
    x, y, length = map(gathered, batch)
    hands = [[] for _ in range(world())]
    for i in length.argsort(descending=True, stable=True).tolist():
        min(hands, key=lambda hand: int(length[hand].sum())).append(i)
    mine = hands[rank()]
    share = world() * len(mine) / len(x)
    optimizer.zero_grad()
    loss = (model(x[mine])[:, 0] - y[mine]).square().mean()

    (share * loss).backward()
    optimizer.step()
