# expect: ddp/forward-bypassed verified, sync/control-desync verified
# shows: Bypassed and a rank of its own rate. Weights part by the learning rate with
#   averaged gradients as well.

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
batch = torch.randn(8, 4) * torch.linspace(1, 4, 8)[:, None], torch.arange(8) % 3

def train_step(model, optimizer, batch):
    x, y = batch
    optimizer.zero_grad()

    value = nn.functional.cross_entropy(getattr(model, "module", model)(x), y)
    value.backward()
    optimizer.param_groups[0]["lr"] = 0.1 * min(1.0, value.item())
    optimizer.step()
