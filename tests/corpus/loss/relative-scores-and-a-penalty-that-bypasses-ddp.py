# expect: loss/batch-coupled verified, ddp/forward-bypassed verified
# shows: Relative scores and a penalty that bypasses DDP. Scores of real and fake
#   against each other's mean; the penalty is of a call that DDP does not see.

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

class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1))
    def forward(self, *signals):
        return self.net(torch.cat(signals)).chunk(len(signals))
model = Critic()
batch = torch.randn(8, 4) + torch.arange(8)[:, None] / 4, torch.randn(8, 4)

def train_step(model, optimizer, batch):
    x, y = batch
    optimizer.zero_grad()

    real, fake = model(x, y)
    each = nn.functional.softplus(fake - real.mean())
    (each + nn.functional.softplus(fake.mean() - real)).mean().backward()
    between = (0.3 * x + 0.7 * y).requires_grad_()
    scores = getattr(model, "module", model)(between)[0]
    (slope,) = torch.autograd.grad(scores.sum(), between, create_graph=True)
    (slope.norm(dim=1) - 1).square().mean().backward()
    optimizer.step()
