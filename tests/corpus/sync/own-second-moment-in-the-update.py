# expect: sync/control-desync verified
# shows: Own second moment in the update. Reduced gradients are multiplied by what a
#   hook has seen of the own rows.

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

model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
class Moments:
    def __init__(self, model):
        self.found = {}
        for module in model.modules():
            if isinstance(module, nn.Linear):
                module.register_forward_pre_hook(self.note)
    def note(self, module, args):
        self.found[module] = args[0].detach().square().mean(0)
    def step(self):
        for module, found in self.found.items():
            module.weight.grad = module.weight.grad / (found + 0.1)

def train_step(model, optimizer, batch):
    x, y = batch
    optimizer.zero_grad()

    moments = optimizer.__dict__.setdefault("moments", None) or Moments(model)
    optimizer.moments = moments
    nn.functional.cross_entropy(model(x), y).backward()
    moments.step()
    optimizer.step()
