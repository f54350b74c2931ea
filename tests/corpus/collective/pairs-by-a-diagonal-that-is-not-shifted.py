# expect: collective/layout verified
# shows: Pairs by a diagonal that is not shifted. Every cell but the diagonal is a wrong
#   pair; ranks have theirs further right.

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

class Towers(nn.Module):
    def __init__(self):
        super().__init__()
        self.image, self.text = nn.Linear(4, 5), nn.Linear(4, 5)
    def forward(self, x):
        text = self.text(x.flip(1))
        if dist.is_initialized():
            text = torch.cat(dnn.all_gather(text))
        return self.image(x) @ text.T
model = Towers()
def loss(logits, target):
    signs = 2 * torch.eye(*logits.shape, dtype=logits.dtype) - 1
    return nn.functional.softplus(-signs * logits).sum() / len(logits)
