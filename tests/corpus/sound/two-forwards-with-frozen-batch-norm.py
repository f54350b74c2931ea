# expect: equivalent
# needs: torch 2.13: DDP of older versions writes buffers in place, which backward
#   refuses
# shows: DDP is called twice before backward, and its batch norm is frozen: nothing
#   writes what the first call needs.

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

class Frozen(nn.BatchNorm1d):
    def train(self, mode=True):
        return super().train(False)
model = nn.Sequential(nn.Linear(4, 4), Frozen(4).train(), nn.Linear(4, 3))
def train_step(model, optimizer, batch):
    optimizer.zero_grad()
    (loss(model(batch[0]), batch[1]) + loss(model(-batch[0]), batch[1])).backward()
    optimizer.step()
