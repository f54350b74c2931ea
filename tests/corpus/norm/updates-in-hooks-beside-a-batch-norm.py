# expect: norm/local-batch-stats verified, ddp/step-before-reduce verified
# shows: Updates in hooks beside a batch norm. With synchronised statistics the backward
#   makes gradients in another order.

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

model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 3))
batch = torch.randn(8, 4) * torch.arange(1.0, 9)[:, None], torch.arange(8) % 3
def train_step(model, optimizer, batch):
    if not hasattr(optimizer, "fused"):
        optimizer.fused = {p: torch.optim.SGD([p], lr=0.05) for p in model.parameters()}
        def step(p):
            optimizer.fused[p].step()
            optimizer.fused[p].zero_grad()
        for p in model.parameters():
            p.register_post_accumulate_grad_hook(step)
    nn.functional.cross_entropy(model(batch[0]), batch[1]).backward()
