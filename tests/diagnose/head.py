"""What programs begin with that a test writes: imports, a batch, a loss."""

from __future__ import annotations

HEAD = """
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
"""
# How a training step of one's own begins.
STEP = """
def train_step(model, optimizer, batch):
    x, y = batch
    optimizer.zero_grad()
"""
