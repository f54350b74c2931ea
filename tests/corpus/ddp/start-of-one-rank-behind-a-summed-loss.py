# expect: ddp/rank-local-weights verified, loss/sum-reduction verified
# shows: Start of one rank behind a summed loss. The gradient does not depend on the
#   weights, and the sum puts rank 0 further off: the start is not what is worst.

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def model():
    torch.manual_seed(0)
    return nn.Linear(6, 2)


def wrap(model):
    wrapped = DistributedDataParallel(model)
    if dist.get_rank() == 1:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.sub_(0.01)
    return wrapped


def batch():
    torch.manual_seed(1)
    return torch.rand(8, 6) + 1, torch.zeros(8)


def loss(output, target):
    return output.sum()


def optimizer(params):
    return torch.optim.SGD(params, lr=0.1)
