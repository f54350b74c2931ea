# expect: loss/router-aux verified
# shows: Router scores of layers as one output. Scores of two layers, put together by
#   the model itself.

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
        self.routers = nn.ModuleList([nn.Linear(4, 3), nn.Linear(3, 3)])
        self.experts = nn.ModuleList([nn.Linear(4, 9), nn.Linear(3, 9)])
    def forward(self, x):
        scores = []
        for router, experts in zip(self.routers, self.experts):
            scores.append(router(x))
            each = experts(x).unflatten(1, (3, 3))
            x = (scores[-1].softmax(-1)[..., None] * each).sum(1)
        return x, torch.stack(scores, 1)
model = Net()
def loss(output, target):
    logits, scores = output
    p = scores.softmax(-1).flatten(0, 1)
    share = nn.functional.one_hot(p.argmax(1), 3).to(p.dtype).mean(0)
    balance = 3 * (share * p.mean(0)).sum()
    return nn.functional.cross_entropy(logits, target) + 0.1 * balance
