# expect: forward/batch-coupled verified
# shows: Hook that centres what a layer is given: a module mixes samples.

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

def model():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    def centre(layer, args, kwargs):
        return (args[0] - args[0].mean(0, keepdim=True),), kwargs
    net[2].register_forward_pre_hook(centre, with_kwargs=True)
    return net
batch = torch.randn(8, 4) * torch.arange(1.0, 9)[:, None], torch.arange(8) % 3
loss = nn.CrossEntropyLoss()
