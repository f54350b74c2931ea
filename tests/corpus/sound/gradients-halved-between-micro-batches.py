# expect: equivalent
# shows: Gradients are halved after every micro-batch: reduced or not, halving keeps the
#   mean over ranks.

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

model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
batch = torch.randn(8, 2, 4), torch.arange(16).view(8, 2) % 3
def train_step(model, optimizer, batch):
    optimizer.zero_grad()
    for i in range(2):
        loss(model(batch[0][:, i]), batch[1][:, i]).backward()
        for p in model.parameters():
            p.grad.mul_(0.5)
    optimizer.step()
