# expect: loss/batch-coupled verified, loss/local-normalizer verified
# shows: Contrast with a temperature beside a token mean. The temperature has no
#   samples: it belongs to neither term's outputs.

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
        self.a, self.b, self.head = nn.Linear(4, 5), nn.Linear(4, 5), nn.Linear(4, 3)
        self.scale = nn.Parameter(torch.tensor(0.5))
    def forward(self, x):
        return self.a(x), self.b(x), self.head(x), self.scale.exp()
model = Net()
batch = torch.randn(8, 4), torch.tensor([0, 1, 2, -100, -100, 1, -100, 0])
def loss(output, target):
    a, b, logits, scale = output
    contrast = nn.functional.cross_entropy(scale * a @ b.t(), torch.arange(len(a)))
    return contrast + nn.functional.cross_entropy(logits, target)
