# expect: ddp/param-replaced-after-wrap
"""Transfer learning: the classifier head is replaced after the model was wrapped."""

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
        self.features = nn.Sequential(
            nn.Conv2d(1, 6, 3, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(2),
            nn.Flatten(),
        )
        self.fc = nn.Linear(24, 4)

    def forward(self, x):
        return self.fc(self.features(x))


def model():
    torch.manual_seed(0)
    net = Net()
    return replace_head(net)


def replace_head(net):
    torch.manual_seed(5)
    net.fc = nn.Linear(24, 4).to(next(net.parameters()).dtype)
    return net


def wrap(model):
    ddp = DDP(model)
    replace_head(ddp.module)
    return ddp


def batch(step):
    g = torch.Generator().manual_seed(320 + step)
    return torch.randn(16, 1, 8, 8, generator=g), torch.randint(
        0, 4, (16,), generator=g
    )


def loss(output, target):
    return F.cross_entropy(output, target)
