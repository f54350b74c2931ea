# expect: state/buffer-broadcast-overwrites verified
# shows: Buffer written by the step. The buffer is written outside all modules, by the
#   step itself.

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

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 3)
        self.register_buffer("centre", torch.zeros(3))
    def forward(self, x):
        return self.head(x) - self.centre
model = Net()

def train_step(model, optimizer, batch):
    x, y = batch
    optimizer.zero_grad()

    output = model(x)
    nn.functional.cross_entropy(output, y).backward()
    optimizer.step()
    centre = getattr(model, "module", model).centre
    centre.lerp_(output.detach().mean(0), 0.5)
