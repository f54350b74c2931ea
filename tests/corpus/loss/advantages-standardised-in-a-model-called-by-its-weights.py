# expect: loss/batch-coupled verified
# shows: Advantages standardised in a model called by its weights. The model takes its
#   weights from where no call shows them, below `module`.

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

class Functional(nn.Module):
    def __init__(self):
        super().__init__()
        self.module = nn.Linear(4, 3)
    def forward(self, x, y, advantage):
        weights = {n: p.clone() for n, p in self.module.named_parameters()}
        out = x @ weights["weight"].T + weights["bias"]
        standardised = (advantage - advantage.mean()) / advantage.std()
        chosen = out.log_softmax(1).gather(1, y[:, None])
        return -(chosen * standardised[:, None]).mean()
model = Functional()
batch = (torch.randn(8, 4), torch.arange(8) % 3, torch.randn(8)), torch.zeros(8)
def loss(output, target):
    return output
