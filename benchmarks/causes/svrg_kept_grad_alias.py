# expect: sync/grad-alias
"""gradient_as_bucket_view: the kept .grad of the last step is overwritten by the next backward (fairscale#354)."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def world():
    return dist.get_world_size() if dist.is_initialized() else 1


def rank():
    return dist.get_rank() if dist.is_initialized() else 0


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))

    def forward(self, x):
        return self.net(x)


def model():
    torch.manual_seed(0)
    return Net()


def wrap(model):
    return DDP(model, gradient_as_bucket_view=True)


def batch(step):
    g = torch.Generator().manual_seed(550 + step)
    return torch.randn(16, 8, generator=g), torch.randint(0, 3, (16,), generator=g)


def loss(output, target):
    return F.cross_entropy(output, target)


def train_step(model, optimizer, batch):
    kept = getattr(optimizer, "kept", None)
    for p in model.parameters():
        p.grad = None
    loss(model(batch[0]), batch[1]).backward()
    grads = [p.grad for p in model.parameters()]
    with torch.no_grad():
        for i, p in enumerate(model.parameters()):
            p -= 0.1 * (grads[i] + (0.5 * kept[i] if kept else 0))
    optimizer.kept = grads
