# expect: loss/batch-coupled verified, sync/scaler-desync unverified
# shows: Scale by the own logits behind an overlap: the loss is not a sum over samples.
#   The ranks scale their losses differently.

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
batch = torch.randn(8, 4), torch.rand(8, 3)
batch[0][4:] *= 60
scaler = {"scale": 4.0}
def overlap(output, target):
    p = output.sigmoid()
    return 1 - (p * target).sum() / (p + target - p * target).sum()

def train_step(model, optimizer, batch):
    x, y = batch
    optimizer.zero_grad()

    output = model(x)
    scaler["scale"] *= 0.5 if float(output.detach().abs().max()) > 9 else 2
    (overlap(output, y) * scaler["scale"]).backward()
    for p in model.parameters():
        p.grad /= scaler["scale"]
    optimizer.step()
