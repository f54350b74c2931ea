# expect: loss/local-normalizer verified
# shows: Count of two levels with none at one. Two levels with one count; at one of them
#   the first shard has nothing.

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
        self.levels = nn.ModuleList(nn.Linear(4, 2) for _ in range(2))
        self.score = nn.Linear(4, 3)
    def forward(self, x):
        return self.score(x), [level(x) for level in self.levels]
model = Net()
found = torch.tensor([[1, 0, 1, 1, 0, 1, 1, 1], [0, 0, 0, 0, 1, 0, 1, 1]]).T
batch = torch.randn(8, 4), {"label": torch.arange(8) % 3, "found": found}
def loss(output, target):
    score, levels = output
    boxes, mask = torch.stack(levels, 1), target["found"].bool()
    near = boxes[mask].square().sum() / mask.sum()
    return nn.functional.cross_entropy(score, target["label"]) + near
