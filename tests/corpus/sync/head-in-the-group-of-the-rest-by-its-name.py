# expect: sync/control-desync verified
# shows: Head in the group of the rest by its name. A wrapped model's parameters have
#   names that begin with another word.

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
    fast = [p for n, p in model.named_parameters() if n.startswith("head.")]
    slow = [p for n, p in model.named_parameters() if not n.startswith("head.")]
    groups = [{"params": slow, "lr": 0.1}] + [{"params": fast, "lr": 1.0}] * bool(fast)
    return torch.optim.SGD(groups, lr=0.1)
def train_step(model, optimizer, batch):
    own = getattr(model, "module", model)
    own.solver = own.solver or solver(model)
    own.solver.zero_grad()
    nn.functional.cross_entropy(model(batch[0]), batch[1]).backward()
    own.solver.step()
