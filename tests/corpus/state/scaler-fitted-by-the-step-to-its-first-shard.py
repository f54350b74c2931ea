# expect: state/buffer-not-synced verified
# shows: Scaler fitted by the step to its first shard. The step fits it, by what no call
#   of the model is given.

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

class Scaler(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))
    def forward(self, x):
        return x - self.mean
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.scaler, self.body = Scaler(), nn.Linear(4, 3)
    def forward(self, x):
        return self.body(self.scaler(x).tanh())
model = Net()
batch = torch.randn(8, 4) * torch.arange(1.0, 9)[:, None], torch.arange(8) % 3
def wrap(model):
    return DDP(model, broadcast_buffers=False)
def train_step(model, optimizer, batch):
    if not hasattr(optimizer, "is_fitted"):
        optimizer.is_fitted = True
        getattr(model, "module", model).scaler.mean.copy_(batch[0].mean(0))
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(batch[0]), batch[1]).backward()
    optimizer.step()
