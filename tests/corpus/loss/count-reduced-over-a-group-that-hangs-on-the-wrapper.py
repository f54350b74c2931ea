# expect: loss/local-normalizer verified
# shows: Count reduced over a group that hangs on the wrapper. What training code has
#   hung on the wrapper is there for probes, too.

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

model = nn.Linear(4, 3)
target = torch.tensor([0, -100, 2, -100, 1, 2, 0, -100])
batch = torch.randn(8, 4), target
def wrap(model):
    made = DDP(model)
    made.node = [dist.new_group([r]) for r in range(world())][rank()]
    return made
def train_step(model, optimizer, batch):
    count = (batch[1] != -100).sum()
    if isinstance(model, DDP):
        dist.all_reduce(count, group=model.node)
    optimizer.zero_grad()
    total = nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="sum")
    (total / count).backward()
    optimizer.step()
