# expect: ddp/param-replaced-after-wrap verified
# shows: Head grown by the step. The optimizer still holds the tensors of the old head.

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

model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
def wrap(model):
    return DDP(model, find_unused_parameters=True)

def train_step(model, optimizer, batch):
    x, y = batch
    optimizer.zero_grad()

    net = getattr(model, "module", model)
    if len(optimizer.param_groups) == 1 and hasattr(net, "seen"):
        net[2] = nn.Linear(5, 6).to(net[2].weight)
        nn.init.constant_(net[2].weight, 0.1)
        nn.init.zeros_(net[2].bias)
        optimizer.add_param_group({"params": list(net[2].parameters())})
    net.seen = True
    loss(model(x), y).backward()
    optimizer.step()
