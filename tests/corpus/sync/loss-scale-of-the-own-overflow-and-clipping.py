# expect: sync/scaler-desync verified
# shows: Loss scale of the own overflow and clipping: the ranks scale their losses
#   differently.

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

model = nn.Linear(4, 3)
class Scale:
    value = 2.0**15
    def __call__(self, loss):
        while bool((loss.detach() * self.value > 2.0**15).any()):
            self.value /= 2
        return loss * self.value
scale = Scale()
batch = torch.linspace(-3, 1, 8)[:, None].expand(8, 4).clone(), torch.arange(8) % 3

def train_step(model, optimizer, batch):
    x, y = batch
    optimizer.zero_grad()

    scale(nn.functional.cross_entropy(4 * model(x), y)).backward()
    for p in model.parameters():
        p.grad.div_(scale.value)
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    optimizer.step()
