# expect: loss/batch-coupled verified
# shows: Proxies in a criterion wrapped for itself. A criterion with weights of its own,
#   in a DDP of its own beside the model's.

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

class Proxies(nn.Module):
    def __init__(self):
        super().__init__()
        self.proxies = nn.Parameter(torch.randn(3, 6))
    def forward(self, x, y):
        right = nn.functional.one_hot(y, 3).bool()
        distance = torch.cdist(x, self.proxies)
        near = torch.where(right, distance.exp(), torch.zeros_like(distance)).sum(0)
        far = torch.where(right, torch.zeros_like(distance), (-distance).exp()).sum(0)
        return near.log1p().sum() / right.any(0).sum() + far.log1p().mean()
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 6), nn.Tanh())
        self.criterion = Proxies()
model = Net()
batch = torch.randn(8, 4), torch.tensor([0, 0, 1, 1, 0, 2, 2, 1])
def wrap(model):
    model.body, model.criterion = DDP(model.body), DDP(model.criterion)
    return model

def train_step(model, optimizer, batch):
    x, y = batch
    optimizer.zero_grad()

    model.criterion(model.body(x), y).backward()
    optimizer.step()
