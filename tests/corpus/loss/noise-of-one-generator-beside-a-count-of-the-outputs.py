# expect: loss/local-normalizer verified, rng/same-stream-all-ranks verified
# shows: Noise of one generator beside a count of the outputs. With the loss of all
#   samples a rank's model still draws for its own.

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
        self.layers, self.calls = nn.Linear(4, 3), 0
    def forward(self, x):
        self.calls += 1
        drawn = torch.Generator().manual_seed(self.calls)
        noise = torch.randn(x.shape, generator=drawn, dtype=torch.float64)
        return self.layers(x), self.layers(x + noise.to(x))
def model():
    torch.manual_seed(0)
    return Net()
batch = torch.randn(8, 4) * torch.arange(1.0, 9)[:, None], torch.arange(8) % 3
def loss(output, target):
    weak, strong = output
    sure, label = weak.detach().softmax(1).max(1)
    keep = (sure > 0.5).to(strong)
    each = nn.functional.cross_entropy(strong, label, reduction="none")
    count = keep.sum().clamp(min=1)
    return nn.functional.cross_entropy(weak, target) + (keep * each).sum() / count
