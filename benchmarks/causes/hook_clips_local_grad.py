# expect: sync/clip-before-reduce
"""Lightning#9330-like: tensor hooks clamp the gradient before DDP reduces it."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn


def world():
    return dist.get_world_size() if dist.is_initialized() else 1


def rank():
    return dist.get_rank() if dist.is_initialized() else 0


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.LSTM(6, 12, batch_first=True)
        self.out = nn.Linear(12, 2)

    def forward(self, x):
        return self.out(self.rnn(x)[0][:, -1])


def model():
    torch.manual_seed(0)
    net = Net()
    for p in net.parameters():
        p.register_hook(lambda grad: grad.clamp(-0.02, 0.02))
    return net


def batch(step):
    g = torch.Generator().manual_seed(490 + step)
    return torch.randn(16, 7, 6, generator=g), torch.randn(16, 2, generator=g)


def loss(output, target):
    return F.mse_loss(output, target)


def train_step(model, optimizer, batch):
    optimizer.zero_grad()
    loss(model(batch[0]), batch[1]).backward()
    optimizer.step()
