# expect: loss/batch-coupled verified
# shows: Ranks of errors by class. A loop over classes adds up what others decide: some
#   of it is a mere count.

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

model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
batch = torch.randn(8, 4), torch.tensor([0, 1, 2, 0, 1, 2, 0, 1])
def loss(output, target):
    shares, total = (output + torch.tensor([2.0, 0, 0])).softmax(1), 0
    for c in range(3):
        found = (target == c).to(output.dtype)
        errors, order = (found - shares[:, c]).abs().sort(descending=True)
        found = found[order]
        both = found.sum() - found.cumsum(0)
        jaccard = 1 - both / (found.sum() + (1 - found).cumsum(0))
        slopes = torch.cat([jaccard[:1], jaccard[1:] - jaccard[:-1]])
        total = total + torch.dot(errors, slopes)
    return total / 3
