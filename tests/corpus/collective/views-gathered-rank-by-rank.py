# expect: collective/layout verified
# shows: Views gathered rank by rank. Both views of a rank, then those of the next;
#   labels repeat view by view.

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

class Views(nn.Linear):
    def forward(self, x):
        rows = super().forward(torch.cat([x, x.flip(1)]))
        return torch.stack(nn.functional.normalize(rows, dim=1).chunk(2), 1)
model = Views(4, 3)
def loss(output, target):
    rows = torch.cat(output.unbind(1))
    if dist.is_initialized():
        rows = torch.cat(dnn.all_gather(rows))
        every = [torch.zeros_like(target) for _ in range(world())]
        dist.all_gather(every, target)
        target = torch.cat(every)
    same = (target[:, None] == target[None]).repeat(2, 2) & ~torch.eye(len(rows)).bool()
    scores = rows @ rows.T
    return ((scores.logsumexp(1, keepdim=True) - scores) * same).sum(1).mean()
