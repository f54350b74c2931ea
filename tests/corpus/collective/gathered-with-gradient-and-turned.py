# expect: collective/backend-defect verified
# shows: Gathered with gradient and turned. The backward of the gather takes gradients
#   that are not contiguous apart wrongly.

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

model = nn.Linear(4, 6)
def loss(output, target):
    views = output.unflatten(1, (2, 3))
    views = torch.cat(dnn.all_gather(views)) if dist.is_initialized() else views
    z = nn.functional.normalize(views.transpose(0, 1).flatten(0, 1), dim=1)
    labels = torch.arange(len(z)).roll(len(z) // 2)
    return nn.functional.cross_entropy(z @ z.T, labels)
