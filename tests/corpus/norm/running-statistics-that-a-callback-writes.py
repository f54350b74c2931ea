# expect: norm/running-stats-rank0 verified
# shows: Running statistics that a callback writes. Its forward is in evaluation, and
#   writes nothing; a hook has seen the own rows.

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

model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3))
batch = torch.randn(8, 4) * torch.linspace(0.3, 2, 8)[:, None], torch.arange(8) % 3
def watched(net):
    if not hasattr(net[1], "seen"):
        net[1].register_forward_pre_hook(lambda m, a: setattr(m, "seen", a[0].detach()))
    return net[1]

def train_step(model, optimizer, batch):
    x, y = batch
    optimizer.zero_grad()

    norm = watched(getattr(model, "module", model))
    model.eval()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    norm.running_mean.lerp_(norm.seen.mean(0), 0.3)
    norm.running_var.lerp_(norm.seen.var(0), 0.3)
