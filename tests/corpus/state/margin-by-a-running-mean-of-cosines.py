# expect: state/buffer-broadcast-overwrites verified
# shows: Margin by a running mean of cosines. It takes directions, and keeps a mean of
#   them: a norm of each sample, not of all.

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

class Head(nn.Linear):
    def __init__(self):
        super().__init__(6, 3)
        self.register_buffer("t", torch.zeros(()))
    def forward(self, x, y):
        normal = nn.functional.normalize
        cosines = normal(x, dim=1) @ normal(self.weight, dim=1).T
        right = cosines.gather(1, y[:, None])
        with torch.no_grad():
            self.t.mul_(0.9).add_(0.1 * right.mean())
        hard = torch.where(cosines > right, cosines * (self.t + cosines), cosines)
        return 8 * hard.scatter(1, y[:, None], right)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(4, 6), Head()
    def forward(self, x, y):
        return self.head(self.body(x), y)
model = Net()
batch = (torch.randn(8, 4), torch.arange(8) % 3), torch.arange(8) % 3
