# expect: collective/no-autograd verified
# shows: Gathered copies beside the own rows. Every parameter but the scale gets 1/2: W
#   times what they get would do as well.

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

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.other = nn.Linear(4, 5), nn.Linear(4, 5)
        self.scale = nn.Parameter(torch.tensor(1.0))
    def forward(self, x):
        rows = (f(x) for f in (self.one, self.other))
        one, other = (nn.functional.normalize(r, dim=-1) for r in rows)
        return one, other, self.scale.exp()
model = Net()
def gathered(z):
    if world() == 1:
        return z
    parts = [torch.zeros_like(z) for _ in range(world())]
    dist.all_gather(parts, z.detach().contiguous())
    parts[rank()] = z
    return torch.cat(parts)
def loss(output, target):
    scores = output[2] * gathered(output[0]) @ gathered(output[1]).T
    return nn.functional.cross_entropy(scores, torch.arange(len(scores)))
