# expect: sync/control-desync verified
# shows: Weight of a penalty by the own loss. The first step is right; its numbers
#   decide on the loss of the second.

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
class Controller:
    weight = 1.0
    def adapt(self, measured):
        self.weight *= 2.0 if measured > 1.3 else 0.5
control = Controller()
batch = torch.linspace(-1, 2, 8)[:, None].expand(8, 4).clone(), torch.arange(8) % 3

def train_step(model, optimizer, batch):
    x, y = batch
    optimizer.zero_grad()

    out = model(x)
    value = nn.functional.cross_entropy(out, y)
    (value + control.weight * out.square().mean()).backward()
    optimizer.step()
    control.adapt(value.detach())
