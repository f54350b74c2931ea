# expect: loss/batch-coupled verified, sync/clip-before-reduce verified
# shows: Clamped by hooks beside an overlap. A bound of each gradient before it is
#   averaged, and a loss of statistics.

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

def model():
    torch.manual_seed(0)
    net = nn.Linear(4, 3)
    for p in net.parameters():
        p.register_hook(lambda g: g.clamp(-0.02, 0.02))
    return net
def loss(output, target):
    p = output.softmax(1)[torch.arange(len(target)), target]
    return 1 - p.sum() / (p + 1).sum() + p.square().sum() / len(p) ** 2

def train_step(model, optimizer, batch):
    x, y = batch
    optimizer.zero_grad()

    loss(model(x), y).backward()
    nn.utils.clip_grad_value_(model.parameters(), 0.02)
    optimizer.step()
