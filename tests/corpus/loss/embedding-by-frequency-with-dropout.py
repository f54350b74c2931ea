# expect: loss/embedding-frequency verified, rng/stochastic-layer verified
# shows: Embedding by frequency with dropout: the forward draws random numbers. An
#   embedding divides its gradient by local counts.

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
        self.words = nn.Embedding(5, 4, scale_grad_by_freq=True)
        self.mix, self.head = nn.Linear(4, 8), nn.Linear(8, 3)
    def forward(self, x):
        h = nn.functional.dropout(self.mix(self.words(x)), 0.2, self.training)
        return self.head(h.tanh())
def model():
    torch.manual_seed(0)
    return Net()
batch = torch.tensor([0, 0, 1, 0, 2, 0, 1, 4]), torch.arange(8) % 3
