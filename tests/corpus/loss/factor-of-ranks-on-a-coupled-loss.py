# expect: loss/batch-coupled verified, loss/double-world-scale unverified
# shows: Factor of ranks on a coupled loss. The factor is seen where no group is: the
#   run that mends the other one hides it.

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

model = nn.Linear(4, 5)
def loss(output, target):
    scores = output @ output.detach().T
    return world() * nn.functional.cross_entropy(scores, torch.arange(len(output)))
