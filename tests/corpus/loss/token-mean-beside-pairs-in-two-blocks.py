# expect: loss/local-normalizer verified
# shows: Token mean beside pairs in two blocks. Both answers to a prompt go through the
#   model as two blocks of all prompts.

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
        self.net = nn.Linear(4, 5)
    def forward(self, x):
        return self.net(torch.cat([x[:, 0], x[:, 1]]))
model = Net()
batch = torch.randn(8, 2, 3, 4), torch.arange(24).view(8, 3) % 5
batch[1][:3, 1:] = -100
def loss(output, target):
    chosen, rejected = output.chunk(2)
    nll = nn.functional.cross_entropy(chosen.flatten(0, 1), target.flatten())
    apart = chosen.mean((1, 2)) - rejected.mean((1, 2))
    return nll - nn.functional.logsigmoid(apart).mean()
