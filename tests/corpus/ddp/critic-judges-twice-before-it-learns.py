# expect: ddp/multi-backward verified
# shows: Critic judges twice before it learns. DDP raises in the next step: a
#   generator's gradients came from nowhere. Two forwards of one network before its two
#   backwards, beside another network.

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

class Gan(nn.Module):
    def __init__(self):
        super().__init__()
        self.make, self.judge = nn.Linear(4, 3), nn.Linear(3, 1)
    def forward(self, x):
        return self.judge(self.make(x))
model = Gan()
batch = torch.randn(8, 4), torch.randn(8, 3)
def wrap(model):
    model.make, model.judge = DDP(model.make), DDP(model.judge)
    return model
def train_step(model, optimizer, batch):
    x, y = batch
    optimizer.zero_grad()

    fake = model.make(x)
    real, made = model.judge(y), model.judge(fake.detach())
    (real - 1).square().mean().backward()
    made.square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    (model.judge(fake) - 1).square().mean().backward()
    optimizer.step()
