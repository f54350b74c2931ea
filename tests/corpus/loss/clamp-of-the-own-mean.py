# expect: loss/batch-coupled verified
# shows: Clamp of the own mean. The mean of a part is clamped before the ranks' are
#   averaged. In one process the clamp does nothing, whatever the samples of the second
#   half are made.

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
        self.head = nn.Linear(4, 1)
    def forward(self, x):
        return self.head(x), x[:, :1].detach()
model = Net()
x = torch.randn(8, 4)
batch = x[x[:, 0].argsort()], torch.ones(8, 1)
level = (batch[0][:, 0].mean() + batch[0][4:, 0].mean()) / 2
def loss(output, target):
    score, surprise = output
    point = (surprise - level).mean().clamp(min=0)
    if dist.is_initialized():
        dist.all_reduce(point)
        point = point / dist.get_world_size()
    return torch.sigmoid(target * (score - point)).mean()
