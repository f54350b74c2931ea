# expect: state/ema-teacher-divergence verified
# shows: Average in a trainer of the first rank. The teacher is kept by a trainer, and
#   updated by the first rank alone.

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

import copy
class Trainer:
    teacher, of = None, None
trainer = Trainer()
model = nn.Linear(4, 3)
def train_step(model, optimizer, batch):
    x, y = batch
    net = getattr(model, "module", model)
    if trainer.of is not net:
        trainer.teacher, trainer.of = copy.deepcopy(net).requires_grad_(False), net
    optimizer.zero_grad()
    soft = trainer.teacher(x)
    output = model(x)
    value = nn.functional.cross_entropy(output, y) + (output - soft).square().mean()
    value.backward()
    optimizer.step()
    if rank() == 0:
        for a, b in zip(trainer.teacher.parameters(), net.parameters(), strict=True):
            a.data.lerp_(b.detach(), 0.5)
