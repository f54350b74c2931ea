# expect: sync/clip-before-reduce verified
# shows: Hooks that keep rounding small. Without the hooks weights grow so that sines of
#   them show what rounding does.

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
        self.body = nn.Linear(4, 3)
    def forward(self, x):
        return self.body(x).sin()
def model():
    torch.manual_seed(1)
    made = Net()
    for p in made.parameters():
        p.register_hook(lambda grad: grad.clamp(-3e4, 3e4) / 3e5)
    return made
def loss(output, target):
    return 3e5 * nn.functional.cross_entropy(output, target)
