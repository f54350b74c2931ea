# expect: forward/batch-coupled verified
# shows: Hook that standardises what the model is given. A hook before the forward is a
#   part of the model, whose caller passes rows on.

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

class Standardised:
    def __call__(self, module, args):
        std, mean = torch.std_mean(args[0], 0, keepdim=True)
        return ((args[0] - mean) / (std + 1e-5),)
def model():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    net.register_forward_pre_hook(Standardised())
    return net
batch = torch.randn(8, 4) * torch.arange(1.0, 9)[:, None], torch.arange(8) % 3
loss = nn.CrossEntropyLoss()
