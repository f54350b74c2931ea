import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F


class MultiModal(nn.Module):
    def __init__(self):
        super().__init__()
        self.ecg = nn.Linear(10, 12)
        self.text = nn.Linear(10, 12)
        self.head = nn.Linear(12, 3)

    def forward(self, x, has_ecg):
        h = self.text(x)
        if has_ecg.any():
            h = h + self.ecg(x) * has_ecg[:, None].to(x.dtype)
        return self.head(torch.relu(h))


def model():
    torch.manual_seed(350)
    return MultiModal()


def wrap(net):
    return net


def batch():
    g = torch.Generator().manual_seed(351)
    return torch.randn(16, 10, generator=g), torch.arange(16) < 7, torch.randint(0, 3, (16,), generator=g)


def loss(logits, answer):
    return F.cross_entropy(logits, answer)


def average_gradients(net):
    if not dist.is_initialized():
        return
    for p in net.parameters():
        if p.grad is None:
            p.grad = torch.zeros_like(p)
        dist.all_reduce(p.grad)
        p.grad /= dist.get_world_size()


def train_step(model, optimizer, batch):
    x, has_ecg, answer = batch
    optimizer.zero_grad()
    loss(model(x, has_ecg), answer).backward()
    average_gradients(model)
    optimizer.step()
