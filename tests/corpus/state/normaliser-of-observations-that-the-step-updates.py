# expect: state/buffer-broadcast-overwrites verified
# shows: Normaliser of observations that the step updates. The history of it is rank
#   0's: DDP sends its buffers.

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

class Normaliser(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("count", torch.zeros(()))
    def update(self, x):
        self.count += len(x)
        self.mean += len(x) / self.count * (x.mean(0) - self.mean)
    def forward(self, x):
        return x - self.mean
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.normaliser, self.body = Normaliser(), nn.Linear(4, 3)
    def forward(self, x):
        return self.body(self.normaliser(x).tanh())
model = Net()
batch = torch.randn(8, 4) * torch.arange(1.0, 9)[:, None], torch.arange(8) % 3
def train_step(model, optimizer, batch):
    getattr(model, "module", model).normaliser.update(batch[0])
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(batch[0]), batch[1]).backward()
    optimizer.step()
