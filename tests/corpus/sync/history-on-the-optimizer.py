# expect: sync/control-desync verified
# shows: History on the optimizer. The sampler hangs on the optimizer, and weighs by
#   what the shard has shown.

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

class History:
    def __init__(self):
        self.losses = torch.ones(4, dtype=torch.float64)
    def weights(self, t):
        return self.losses.mean() / self.losses[t]
    def update(self, t, losses):
        for at, value in zip(t.tolist(), losses.tolist()):
            self.losses[at] = 0.5 * self.losses[at] + 0.5 * value
model = nn.Linear(4, 3)
batch = torch.randn(8, 4), torch.arange(8) // 2
def optimizer(params):
    made = torch.optim.SGD(params, lr=0.1)
    made.history = History()
    return made
def train_step(model, optimizer, batch):
    x, t = batch
    optimizer.zero_grad()
    losses = model(x).square().mean(1)
    weights = optimizer.history.weights(t)
    optimizer.history.update(t, losses.detach())
    (weights * losses).mean().backward()
    optimizer.step()
