# expect: equivalent
# shows: Path lengths against the mean of all. The norms of gradients and weights are no
#   numbers of samples.

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

class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.style = nn.Sequential(nn.Linear(4, 6), nn.LeakyReLU(0.2))
        self.synthesis = nn.Sequential(nn.Linear(6, 8), nn.Softplus(), nn.Linear(8, 5))
    def forward(self, z):
        style = self.style(z)
        return self.synthesis(style), style
model = Generator()
batch = torch.randn(8, 4) * torch.linspace(0.2, 3, 8)[:, None], torch.randn(8, 5)

def train_step(model, optimizer, batch):
    x, y = batch
    optimizer.zero_grad()

    image, style = model(x)
    (slope,) = torch.autograd.grad(image.sum(), style, create_graph=True)
    lengths = slope.square().sum(1).sqrt()
    mean = lengths.detach().mean()
    if dist.is_initialized():
        dist.all_reduce(mean)
        mean /= world()
    penalty = (lengths - 0.9 * mean).square().mean()
    (nn.functional.mse_loss(image, y) + penalty).backward()
    optimizer.step()
