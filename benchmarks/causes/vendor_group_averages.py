# expect: collective/backend-defect
"""A vendor's process group averages where it is asked for a sum: DDP divides again."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class VendorGroup(dist.ProcessGroup):
    """Hands collectives on to gloo; its sum is an average."""

    def __init__(self, group):
        super().__init__(group.rank(), group.size())
        self.group = group

    def allreduce(self, tensors, options):
        work = self.group.allreduce(tensors, options)
        work.wait()
        for tensor in tensors:
            tensor.div_(self.group.size())
        return work

    def broadcast(self, tensors, options):
        return self.group.broadcast(tensors, options)

    def allgather(self, outputs, inputs, options):
        return self.group.allgather(outputs, inputs, options)


def model():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(6, 16), nn.LayerNorm(16), nn.SiLU(), nn.Linear(16, 2)
    )


def batch(step):
    g = torch.Generator().manual_seed(920 + step)
    return torch.randn(16, 6, generator=g), torch.randn(16, 2, generator=g)


loss = nn.SmoothL1Loss()


def wrap(model):
    return DDP(model, process_group=VendorGroup(dist.group.WORLD))
