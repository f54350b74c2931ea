# expect: loss/regularizer-scale verified
# shows: Learned variance multiplied like the data. The scale has a part in the data
#   term as well; both are computed in forward.

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
        self.net = nn.Linear(4, 1)
        self.log_variance = nn.Parameter(torch.tensor(0.2))
    def forward(self, x, y):
        world = dist.get_world_size() if dist.is_initialized() else 1
        error = (self.net(x).squeeze(1) - y).square().sum() / 8
        loss = world * ((-self.log_variance).exp() * error + self.log_variance)
        return {"loss": loss}
model = Net()
batch = {"x": torch.randn(8, 4), "y": torch.randn(8)}
del loss
