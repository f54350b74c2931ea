# expect: loss/local-normalizer verified
# shows: Points of lists of several lengths. Items of several lengths, in two lists.

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
        self.net, self.far = nn.Linear(5, 2), nn.Linear(5, 2)
    def forward(self, points, count):
        kept = [p[:n] for p, n in zip(points, count.tolist())]
        return {
            "points": [self.net(p) for p in kept],
            "far": tuple(self.far(p) for p in kept),
        }
model = Net()
counts = torch.tensor([1, 2, 2, 3, 1, 2, 6, 7])
batch = {"points": torch.randn(8, 7, 5), "count": counts}, torch.arange(8) % 3
def loss(output, target):
    gaps = torch.cat(output["points"]) - torch.cat(output["far"])
    return gaps.square().mean()
