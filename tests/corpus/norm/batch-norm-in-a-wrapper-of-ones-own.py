# expect: norm/local-batch-stats verified
# shows: Batch norm in a wrapper of ones own: batch norm normalises with the statistics
#   of the shard.

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

class Averaging(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net = net
        for p in net.parameters():
            p.register_post_accumulate_grad_hook(self.average)
    def average(self, p):
        dist.all_reduce(p.grad)
        p.grad /= world()
    def forward(self, x):
        return self.net(x)
model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))
wrap = Averaging
