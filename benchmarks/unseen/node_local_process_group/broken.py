import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

GPUS_PER_NODE = 2


def model():
    torch.manual_seed(410)
    return nn.Sequential(nn.Linear(10, 20), nn.GELU(), nn.Linear(20, 10))


def wrap(net):
    subgroup, _ = dist.new_subgroups(group_size=min(GPUS_PER_NODE, dist.get_world_size()))
    return DDP(net, process_group=subgroup)


def batch():
    g = torch.Generator().manual_seed(411)
    x = torch.randn(16, 10, generator=g)
    return x, x.flip(1)


def loss(output, target):
    return nn.functional.smooth_l1_loss(output, target)


def optimizer(params):
    return torch.optim.SGD(params, lr=0.5, momentum=0.9)
