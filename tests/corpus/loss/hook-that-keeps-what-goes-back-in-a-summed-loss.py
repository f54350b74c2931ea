# expect: loss/sum-reduction verified
# shows: Hook that keeps what goes back in a summed loss. What goes back through a
#   module is kept by a hook of its own.

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
kept = {}
def keep(layer, into, out):
    kept[layer] = out[0]
for layer in (model[0], model[2]):
    layer.register_full_backward_hook(keep)

def train_step(model, optimizer, batch):
    x, y = batch
    optimizer.zero_grad()

    nn.functional.cross_entropy(model(x), y, reduction="sum").backward()
    assert [len(kept.pop(layer)) for layer in list(kept)] == [len(x)] * 2
    optimizer.step()
