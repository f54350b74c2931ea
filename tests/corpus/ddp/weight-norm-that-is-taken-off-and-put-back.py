# expect: ddp/param-replaced-after-wrap verified
# shows: Weight norm that is taken off and put back. Fused for a validation, and split
#   again without gradients.

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

from torch.nn.utils import parametrize
from torch.nn.utils.parametrizations import weight_norm
model = nn.Sequential(weight_norm(nn.Linear(4, 6)), nn.Tanh(), nn.Linear(6, 3))
@torch.no_grad()
def validate(net, x):
    parametrize.remove_parametrizations(net[0], "weight")
    score = net(x).mean()
    weight_norm(net[0])
    return score

def train_step(model, optimizer, batch):
    x, y = batch
    optimizer.zero_grad()

    if not hasattr(optimizer, "was_validated"):
        optimizer.was_validated = validate(getattr(model, "module", model), x)
        optimizer.param_groups[0]["params"][:] = list(model.parameters())
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
def wrap(model):
    return DDP(model)
