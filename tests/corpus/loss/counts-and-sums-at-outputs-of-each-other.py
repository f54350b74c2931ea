# expect: loss/local-normalizer verified, loss/sum-reduction verified
# shows: Counts and sums at outputs of each other. One output is computed from another:
#   each addend has its own at both.

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
        self.body, self.head = nn.Linear(4, 6), nn.Linear(6, 3)
    def forward(self, x):
        hidden = self.body(x).tanh()
        return hidden, self.head(hidden)
model = Net()
batch = torch.randn(8, 4), torch.tensor([0, -100, 2, -100, 1, 2, 0, 1])

def train_step(model, optimizer, batch):
    x, y = batch
    optimizer.zero_grad()

    hidden, output = model(x)
    (nn.functional.cross_entropy(output, y) + 0.1 * hidden.square().sum()).backward()
    optimizer.step()
