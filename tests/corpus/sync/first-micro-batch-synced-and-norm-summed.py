# expect: sync/no-sync-off-by-one verified, sync/clip-norm-overreduced verified
# shows: First micro batch synced and norm summed: the micro-batch that is synchronised
#   is not the last. The norm for clipping is reduced over ranks a second time.

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
def train_step(model, optimizer, batch):
    x, y = batch
    optimizer.zero_grad()

    import contextlib
    for i, part in enumerate((slice(0, None, 2), slice(1, None, 2))):
        local = hasattr(model, "no_sync") and i == 1
        with model.no_sync() if local else contextlib.nullcontext():
            (nn.functional.cross_entropy(model(x[part]), y[part]) / 2).backward()
    total = sum(p.grad.square().sum() for p in model.parameters())
    if dist.is_initialized():
        dist.all_reduce(total)
    for p in model.parameters():
        p.grad *= 0.01 / total.sqrt()
    optimizer.step()
