# expect: sync/clip-before-reduce verified, rng/stochastic-layer verified
# shows: Micro batches clipped one by one with dropout: the forward draws random
#   numbers. Gradients are clipped before they are reduced.

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
        self.body = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.1, batch_first=True)
        self.head = nn.Linear(4, 3)
    def forward(self, x):
        return self.head(self.body(x[:, None]))[:, 0]
def model():
    torch.manual_seed(0)
    return Net()
batch = torch.randn(16, 4) * torch.linspace(0.3, 3.0, 16)[:, None], torch.arange(16) % 3
def train_step(model, optimizer, batch):
    optimizer.zero_grad()
    for x, y in zip(*(t.chunk(2) for t in batch)):
        (loss(model(x), y) / 2).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    pass
    optimizer.step()
