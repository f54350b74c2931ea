# expect: sync/control-desync verified
# shows: Momentum that rank 0 alone takes up. Constants in place of what rank 0 draws
#   would be no momentum: nothing to differ.

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
def optimizer(params):
    return torch.optim.SGD(params, lr=0.1, momentum=0.9)
def loaded(p, g):
    return {"momentum_buffer": 0.05 * torch.randn(p.shape, generator=g).to(p)}

def train_step(model, optimizer, batch):
    x, y = batch
    optimizer.zero_grad()

    if not optimizer.state and rank() == 0:
        g, state = torch.Generator().manual_seed(17), optimizer.state_dict()
        held = optimizer.param_groups[0]["params"]
        state["state"] = {i: loaded(p, g) for i, p in enumerate(held)}
        optimizer.load_state_dict(state)
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
