# expect: state/ema-teacher-divergence verified
# shows: Teacher that rank 0 updates and all ask at once: untrained weights are updated
#   differently on the ranks.

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

class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.student = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
        self.teacher = nn.Linear(4, 3).requires_grad_(False)
def model():
    torch.manual_seed(0)
    return Pair()
def wrap(model):
    model.student = DDP(model.student)
    return model

def train_step(model, optimizer, batch):
    x, y = batch
    optimizer.zero_grad()

    if rank() == 0:
        with torch.no_grad():
            model.teacher.weight.mul_(0.9).add_(0.1)
    taught = nn.functional.mse_loss(model.student(x), model.teacher(x))
    taught.backward()
    optimizer.step()
