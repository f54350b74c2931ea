# expect: loss/accum-normalizer verified
# shows: Sums of means by budget and recurrent. As many micro-batches as their rows'
#   counts fill, other numbers of them on ranks; recurrent state has its samples in the
#   second dimension.

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
        self.rnn, self.out = nn.GRU(4, 5, batch_first=True), nn.Linear(5, 3)
    def forward(self, x):
        return self.out(self.rnn(x)[0][:, -1])
model = Net()
batch = torch.randn(16, 3, 4), torch.arange(16) % 3
batch[1][[2, 5, 6, 13]] = -100

def train_step(model, optimizer, batch):
    x, y = batch
    optimizer.zero_grad()

    number = ((y != -100).cumsum(0) - 1).clamp(min=0) // 4
    for i in number.unique():
        own = number == i
        nn.functional.cross_entropy(model(x[own]), y[own]).backward()
    optimizer.step()
