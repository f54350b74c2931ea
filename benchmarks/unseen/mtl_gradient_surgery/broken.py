import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F


class TwoTask(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(10, 16), nn.ReLU())
        self.seg = nn.Linear(16, 3)
        self.depth = nn.Linear(16, 1)

    def forward(self, x):
        h = self.encoder(x)
        return self.seg(h), self.depth(h).squeeze(1)


def model():
    torch.manual_seed(440)
    return TwoTask()


def batch():
    g = torch.Generator().manual_seed(441)
    x = torch.randn(16, 10, generator=g)
    seg = torch.randint(0, 3, (16,), generator=g)
    depth = -2 * x[:, 0] + torch.randn(16, generator=g)
    return x, torch.stack([seg.float(), depth], 1)


def task_losses(output, target):
    return [F.cross_entropy(output[0], target[:, 0].long()), F.mse_loss(output[1], target[:, 1])]


def loss(output, target):
    return sum(task_losses(output, target))


def task_gradients(losses, params):
    grads = []
    for value in losses:
        gs = torch.autograd.grad(value, params, retain_graph=True, allow_unused=True)
        flat = torch.cat([(torch.zeros_like(p) if g is None else g).flatten() for g, p in zip(gs, params)])
        grads.append(flat)
    return grads


def project(grads):
    out = []
    for i, g in enumerate(grads):
        g = g.clone()
        for j, other in enumerate(grads):
            dot = torch.dot(g, other)
            if i != j and dot < 0:
                g -= dot / other.dot(other) * other
        out.append(g)
    return sum(out)


def train_step(model, optimizer, batch):
    x, target = batch
    params = list(model.parameters())
    losses = task_losses(model(x), target)
    merged = project(task_gradients(losses, params))
    for p, g in zip(params, merged.split([p.numel() for p in params])):
        p.grad = g.view_as(p).clone()
    optimizer.step()


def wrap(net):
    return net
