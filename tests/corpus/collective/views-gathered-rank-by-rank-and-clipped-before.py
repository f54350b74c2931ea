# expect: collective/layout verified, sync/clip-before-reduce verified
# shows: Views gathered rank by rank and clipped before. Each hides what the other is:
#   gradients are off by both.

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
        self.body = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 5))
    def forward(self, a, b):
        return nn.functional.normalize(self.body(torch.cat([a, b])), dim=1)
class Clipped(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = Net()
        for p in self.net.parameters():
            p.register_hook(lambda g: g * (0.02 / g.norm()).clamp(max=1))
    def forward(self, a, b):
        return self.net(a, b)
def model():
    torch.manual_seed(0)
    return Clipped()

x = torch.randn(8, 4) * torch.linspace(0.5, 2, 8)[:, None]
batch = x + 0.3 * torch.randn(8, 4), x + 0.3 * torch.randn(8, 4)
def contrast(z):
    n = len(z) // 2
    scores = (2 * z @ z.T).masked_fill(torch.eye(2 * n, dtype=torch.bool), -1e9)
    return nn.functional.cross_entropy(scores, torch.arange(2 * n).roll(n))
def train_step(model, optimizer, batch):
    optimizer.zero_grad()
    z = model(*batch)
    contrast(torch.cat(dnn.all_gather(z)) if world() > 1 else z).backward()
    optimizer.step()
