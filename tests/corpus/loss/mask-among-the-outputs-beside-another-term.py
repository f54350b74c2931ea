# expect: loss/local-normalizer verified
# shows: Mask among the outputs beside another term. A mask that the model makes of its
#   inputs and returns is as good as a target.

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

class Speech(nn.Module):
    def __init__(self):
        super().__init__()
        self.mean, self.head = nn.Linear(4, 4), nn.Linear(4, 3)
    def forward(self, x):
        mask = (x > x.mean(1, keepdim=True) - 0.7).to(x.dtype)
        return self.mean(x) * mask, self.head(x), mask
model = Speech()
def loss(output, target):
    mean, logits, mask = output
    masked = (mean.square() * mask).sum() / mask.sum()
    return masked + nn.functional.cross_entropy(logits, target)
