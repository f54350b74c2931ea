# expect: ddp/converted-after-wrap verified
# shows: Converted for a snapshot and back. There and back: the dtype is what it was,
#   DDP's hooks are on nodes left behind.

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

model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))

def train_step(model, optimizer, batch):
    x, y = batch
    optimizer.zero_grad()

    loss(model(x), y).backward()
    optimizer.step()
    net = getattr(model, "module", model)
    kept = {n: t.clone() for n, t in net.state_dict().items()}
    dtype = net[0].weight.dtype
    net.half().to(dtype).load_state_dict(kept)
