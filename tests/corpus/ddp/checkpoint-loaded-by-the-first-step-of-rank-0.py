# expect: ddp/rank-local-weights verified
# shows: Checkpoint loaded by the first step of rank 0: weights are written on some
#   ranks and not on others.

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
state = {"weight": torch.full((3, 4), 0.5), "bias": torch.ones(3)}
def train_step(model, optimizer, batch):
    inner = getattr(model, "module", model)
    if rank() == 0 and not hasattr(inner, "loaded"):
        inner.load_state_dict({k: v.to(inner.bias.dtype) for k, v in state.items()})
    inner.loaded = True
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(batch[0]), batch[1]).backward()
    optimizer.step()
