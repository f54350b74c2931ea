# expect: loss/local-normalizer verified
# shows: Mean over what the model is sure of. How many are sure is the model's to say:
#   the divisor moves in jumps.

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

model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
batch = 3 * torch.randn(16, 4), torch.arange(16) % 3

def loss(output, target):
    sure, guess = output.detach().softmax(1).max(1)
    sure = (sure > 0.5).double()
    values = nn.functional.cross_entropy(output, guess, reduction="none")
    return (values * sure).sum() / sure.sum().clamp(min=1)
