# expect: state/forward-writes-parameter verified
# shows: Rows bounded on one rank. One rank's rows alone are beyond the norm: the other
#   rank's call writes nothing.

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

model = nn.Embedding(8, 3, max_norm=1.0)
with torch.no_grad():
    model.weight.copy_(torch.arange(24).reshape(8, 3) % 5 / 50)
    model.weight[5] *= 100
batch = torch.arange(8), torch.arange(8) % 3
