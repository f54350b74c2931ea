# expect: loss/local-normalizer verified, loss/router-aux verified
# shows: Router beside a token mean: the loss is divided by a data-dependent count of
#   the shard. A load-balancing loss multiplies two means over the local shard.

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
        self.router, self.experts = nn.Linear(4, 3), nn.Linear(4, 9)
    def forward(self, x):
        p = self.router(x).softmax(-1)
        each = self.experts(x).unflatten(1, (3, 3))
        return (p[..., None] * each).sum(1), p
model = Net()
batch = torch.randn(8, 4) * 3, torch.tensor([0, 1, 2, -100, -100, 1, -100, 0])
def loss(output, target):
    logits, p = output
    share = nn.functional.one_hot(p.argmax(1), 3).to(p.dtype).mean(0)
    return nn.functional.cross_entropy(logits, target) + 3 * (share * p.mean(0)).sum()
