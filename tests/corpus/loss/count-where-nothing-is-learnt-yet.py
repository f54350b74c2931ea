# expect: loss/local-normalizer verified
# shows: Count where nothing is learnt yet. Every shard has a loss of log(3), to seven
#   digits.

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
nn.init.normal_(model.weight, std=1e-9)
nn.init.zeros_(model.bias)
batch = torch.randn(8, 4), torch.tensor([0, -100, 2, -100, 1, 2, 0, -100])
