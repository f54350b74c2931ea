# expect: state/ema-teacher-divergence verified
# shows: Teacher that ranks draw. Every rank makes a teacher of its own, and keeps it
#   where nobody looks by name.

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
import weakref
model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
class Trainer:
    def __init__(self, net):
        torch.manual_seed(9 + rank())
        self.teacher = copy.deepcopy(net).requires_grad_(False)
        self.teacher[2].reset_parameters()
trainers = weakref.WeakKeyDictionary()
def train_step(model, optimizer, batch):
    if optimizer not in trainers:
        trainers[optimizer] = Trainer(getattr(model, "module", model))
    goal = trainers[optimizer].teacher(batch[0])
    optimizer.zero_grad()
    nn.functional.mse_loss(model(batch[0]), goal).backward()
    optimizer.step()
