# expect: state/ema-teacher-divergence verified
# shows: Average by the size of the shard. An average that follows the model at a rate
#   made of the images that it has seen.

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

class Net(nn.Linear):
    def __init__(self):
        super().__init__(4, 3)
        self.average = nn.Linear(4, 3).requires_grad_(False)
    def forward(self, x):
        return super().forward(x), self.average(x)
model = Net()

def train_step(model, optimizer, batch):
    x, y = batch
    optimizer.zero_grad()

    mine, theirs = model(x)
    fit = nn.functional.cross_entropy(mine, y)
    (fit + (mine - theirs).square().mean()).backward()
    optimizer.step()
    net, rate = getattr(model, "module", model), 0.5 ** (len(x) / 4)
    net.average.weight.lerp_(net.weight.detach(), rate)
