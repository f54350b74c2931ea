# expect: loss/accum-normalizer verified, sync/no-sync-off-by-one verified
# shows: Masked means of micro batches and the first synced. Fixes of one fault that
#   exclude each other are proposed beside the other fault's.

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

batch = torch.randn(32, 4), torch.arange(32) % 3
batch[1][[0, 1, 2, 4, 5, 8, 17]] = -100

def train_step(model, optimizer, batch):
    x, y = batch
    optimizer.zero_grad()

    import contextlib
    for i, (x_part, y_part) in enumerate(zip(x.chunk(4), y.chunk(4))):
        local = hasattr(model, "no_sync") and i > 0
        with model.no_sync() if local else contextlib.nullcontext():
            (nn.functional.cross_entropy(model(x_part), y_part, ignore_index=-100) / 4).backward()
    optimizer.step()
