# expect: loss/batch-coupled verified
# shows: Memory of the own samples. Earlier samples are constants: no output moves
#   another's gradient.

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
        self.embed, self.memory = nn.Linear(4, 3), []
    def forward(self, x):
        return self.embed(x)
def model():
    torch.manual_seed(0)
    return Net()
batch = torch.randn(8, 4) * torch.arange(1.0, 9)[:, None], torch.arange(8) % 3
def train_step(model, optimizer, batch):
    x, y = batch
    memory = getattr(model, "module", model).memory
    optimizer.zero_grad()
    z = model(x)
    value = nn.functional.cross_entropy(z, y)
    if memory:
        past, labels = (torch.cat(column) for column in zip(*memory))
        same = (y[:, None] == labels).to(z)
        value = value + ((z @ past.T).tanh() * (0.5 - same)).mean()
    value.backward()
    optimizer.step()
    memory.append((z.detach().clone(), y))
