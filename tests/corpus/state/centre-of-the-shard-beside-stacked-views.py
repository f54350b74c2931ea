# expect: state/buffer-broadcast-overwrites verified
# shows: Centre of the shard beside stacked views. The model itself writes; one of its
#   outputs has the views before the samples.

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

class Dino(nn.Module):
    def __init__(self):
        super().__init__()
        self.student, self.teacher = nn.Linear(4, 3), nn.Linear(4, 3)
        self.teacher.requires_grad_(False)
        self.register_buffer("centre", torch.zeros(3))
    def forward(self, x):
        views = torch.stack([self.teacher(x), self.teacher(x.flip(1))])
        target = (views - self.centre).softmax(-1)
        if self.training:
            self.centre.lerp_(views.mean((0, 1)), 0.3)
        return self.student(x), target
model = Dino()
def loss(output, _):
    x, target = output
    return -(target.sum(0) * x.log_softmax(-1)).sum(-1).mean()
