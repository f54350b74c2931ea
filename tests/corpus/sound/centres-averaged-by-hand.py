# expect: equivalent
# shows: The centres of a criterion are outside DDP, and the step averages their
#   gradients over ranks by hand.

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

class Centres(nn.Module):
    def __init__(self):
        super().__init__()
        start = torch.linspace(-1, 1, 9, dtype=torch.float64).view(3, 3)
        self.centres = nn.Parameter(start)
    def forward(self, x, y):
        return (x - self.centres[y]).square().sum(1).mean()
centres = Centres()
model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
batch = torch.randn(16, 4), torch.arange(16) % 3

centres_optimizer = torch.optim.SGD(centres.parameters(), lr=0.5)
def train_step(model, optimizer, batch):
    optimizer.zero_grad()
    centres_optimizer.zero_grad()
    centres(model(batch[0]), batch[1]).backward()

    if dist.is_initialized():
        dist.all_reduce(centres.centres.grad)
        centres.centres.grad /= world()

    optimizer.step()
    centres_optimizer.step()
