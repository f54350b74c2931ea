# expect: sync/control-desync verified
# shows: Loss scale and rate of the own overflow. With the learning rate of the single
#   process on all ranks, these would still divide by other scales than each other.

import torch
from torch import nn

torch.manual_seed(0)
batch = torch.randn(8, 4), torch.arange(8.0).double()[:, None]
loss = nn.MSELoss()
model = nn.Linear(4, 1)

class Scaler:
    def __init__(self):
        self.scale = 1024.0
    def overflows(self, scaled):
        return bool(scaled.detach() > 20000)

def optimizer(params):
    made = torch.optim.SGD(params, lr=0.01)
    made.scaler = Scaler()
    return made

def train_step(model, optimizer, batch):
    scaler = optimizer.scaler
    optimizer.zero_grad()
    scaled = loss(model(batch[0]), batch[1]) * scaler.scale
    scaled.backward()
    for p in model.parameters():
        p.grad.div_(scaler.scale)
    if scaler.overflows(scaled):
        scaler.scale /= 2
        for group in optimizer.param_groups:
            group["lr"] /= 2
    optimizer.step()
