import copy

import torch
import torch.distributed as dist
from torch import nn

UPDATE_MODEL_EVERY, BETA = 2, 0.5


class EMA:
    def __init__(self, net):
        self.ema_model = copy.deepcopy(net)
        self.step = 0

    @torch.no_grad()
    def update(self, net):
        self.step += 1
        for e, p in zip(self.ema_model.parameters(), net.parameters()):
            e.lerp_(p, 1 - BETA)
        if self.step % UPDATE_MODEL_EVERY == 0:
            for e, p in zip(self.ema_model.parameters(), net.parameters()):
                p.copy_(e)


ema = None


def model():
    global ema
    ema = None
    torch.manual_seed(340)
    return nn.Sequential(nn.Linear(8, 16), nn.SiLU(), nn.Linear(16, 8))


def batch():
    g = torch.Generator().manual_seed(341)
    x0 = torch.randn(16, 8, generator=g)
    return x0 + 0.5 * torch.randn(16, 8, generator=g), x0


def loss(pred, x0):
    return nn.functional.mse_loss(pred, x0)


def train_step(model, optimizer, batch):
    global ema
    net = getattr(model, "module", model)
    ema = ema or EMA(net)
    noisy, x0 = batch
    optimizer.zero_grad()
    loss(model(noisy), x0).backward()
    optimizer.step()
    is_main_process = not dist.is_initialized() or dist.get_rank() == 0
    if is_main_process:
        ema.update(net)
