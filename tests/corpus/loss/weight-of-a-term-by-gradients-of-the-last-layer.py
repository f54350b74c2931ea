# expect: loss/batch-coupled verified
# shows: Weight of a term by gradients of the last layer. A discriminator's term is
#   weighed by gradients of the generator's last layer.

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

class Pair(nn.Module):
    def __init__(self, made, judged):
        super().__init__()
        self.made, self.judged = made, judged
def model():
    torch.manual_seed(0)
    judged = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 1))
    return Pair(nn.Linear(4, 4), judged)
def wrap(model):
    return Pair(DDP(model.made), DDP(model.judged))
batch = torch.randn(8, 4) * torch.linspace(0.2, 2, 8)[:, None], batch[1]
def bare(part):
    return getattr(part, "module", part)

def train_step(model, optimizer, batch):
    x, y = batch
    optimizer.zero_grad()

    made = model.made(x)
    near, real = (made - x).abs().mean(), -bare(model.judged)(made).mean()
    (a,), (b,) = (
        torch.autograd.grad(t, bare(model.made).weight, retain_graph=True)
        for t in (near, real)
    )
    for p in model.judged.parameters():
        p.requires_grad_(False)
    (near - a.norm() / b.norm() * bare(model.judged)(made).mean()).backward()
    for p in model.judged.parameters():
        p.requires_grad_(True)
    model.judged(x - made.detach()).square().mean().backward()
    optimizer.step()
