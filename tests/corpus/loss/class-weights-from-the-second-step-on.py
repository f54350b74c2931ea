# expect: loss/local-normalizer verified
# shows: Class weights from the second step on. Deferred re-weighting: a mean of class
#   weights divides by those of the shard.

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
        self.net = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
        self.epoch = 0
    def forward(self, x):
        return self.net(x)
model = Net()

def train_step(model, optimizer, batch):
    x, y = batch
    optimizer.zero_grad()

    own = getattr(model, "module", model)
    weight = torch.tensor([1.0, 3.0, 9.0]) ** min(own.epoch, 1)
    nn.functional.cross_entropy(model(x), y, weight.to(x)).backward()
    optimizer.step()
    own.epoch += 1
