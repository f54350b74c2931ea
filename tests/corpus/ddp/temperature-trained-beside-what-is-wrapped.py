# expect: ddp/wrapper-missing verified
# shows: Temperature trained beside what is wrapped. A temperature that the third of
#   three updates trains.

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
        self.body = nn.Linear(4, 3)
        self.log_scale = nn.Parameter(torch.zeros(()))
    def forward(self, x):
        return self.body(x)
model = Net()
def wrap(model):
    model.body = DDP(model.body)
    return model
def optimizer(params):
    return torch.optim.Adam(params, lr=0.01)

def train_step(model, optimizer, batch):
    x, y = batch
    optimizer.zero_grad()

    output = model(x)
    (nn.functional.cross_entropy(output, y) * model.log_scale.exp().detach()).backward()
    optimizer.step()
    optimizer.zero_grad()
    (model.log_scale * (output.detach().square().mean() - 0.3)).backward()
    optimizer.step()
