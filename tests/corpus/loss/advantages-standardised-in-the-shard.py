# expect: loss/batch-coupled verified
# shows: Advantages standardised in the shard. The loss normalises its targets: no
#   output moves any other sample's gradient.

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

model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 1))
batch = torch.randn(8, 4), torch.randn(8) * torch.linspace(1, 3, 8)
def loss(output, target):
    advantage = (target - target.mean()) / target.std()
    return (output.squeeze(1).exp() * advantage).mean() + output.square().mean()
