# expect: equivalent
# shows: Head in a group of its own by its bare name. With the names that it has without
#   its wrapper; a scheduler knows both groups.

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
        self.body, self.head = nn.Linear(4, 6), nn.Linear(6, 3)
        self.solver = None
    def forward(self, x):
        return self.head(self.body(x).tanh())
model = Net()
def solver(model):
    named = {n.removeprefix("module."): p for n, p in model.named_parameters()}
    fast = [p for n, p in named.items() if n.startswith("head.")]
    slow = [p for n, p in named.items() if not n.startswith("head.")]
    return torch.optim.SGD([{"params": slow}, {"params": fast, "lr": 1.0}], lr=0.1)
def train_step(model, optimizer, batch):
    own = getattr(model, "module", model)
    if own.solver is None:
        own.solver = solver(model)
        own.schedule = torch.optim.lr_scheduler.StepLR(own.solver, 1)
    own.solver.zero_grad()
    nn.functional.cross_entropy(model(batch[0]), batch[1]).backward()
    own.solver.step()
    own.schedule.step()
