# expect: loss/local-normalizer verified, ddp/forward-bypassed verified
# shows: Sorted words and a part past its wrapper. So, and one of two wrapped parts is
#   called past its wrapper.

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

class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.coder, self.head = nn.Linear(4, 6), nn.Linear(6, 3)
model = Pair()
def wrap(model):
    model.coder, model.head = DDP(model.coder), DDP(model.head)
    return model

batch = torch.randn(8, 5, 4), torch.tensor([2, 1, 2, 3, 5, 4, 5, 3])
def train_step(model, optimizer, batch):
    x, lengths = batch
    lengths, order = lengths.sort(descending=True, stable=True)
    out = getattr(model.head, "module", model.head)(model.coder(x[order]).tanh())
    valid = torch.arange(5) < lengths[:, None]
    optimizer.zero_grad()
    (out - 1).square().mean(2)[valid].mean().backward()
    optimizer.step()
