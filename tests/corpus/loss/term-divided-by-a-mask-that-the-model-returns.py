# expect: loss/local-normalizer verified
# shows: Term divided by a mask that the model returns. Other samples' masks, which the
#   model returns, decide what divides one of terms.

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
        self.body, self.one = nn.Linear(4, 6), nn.Linear(6, 1)
        self.each = nn.Linear(6, 5)
    def forward(self, x, length):
        h = self.body(x).tanh()
        mask = (torch.arange(5) < length[:, None]).to(x.dtype)
        return self.one(h)[:, 0], self.each(h), mask
model = Net()
length = torch.tensor([1, 2, 1, 3, 5, 4, 5, 3])
batch = torch.randn(8, 4), length, torch.randn(8), torch.randn(8, 5)
def train_step(model, optimizer, batch):
    x, length, y, goal = batch
    optimizer.zero_grad()
    one, each, mask = model(x, length)
    term = ((each - goal).square() * mask).sum() / mask.sum()
    sound = (one - y).abs().mean() + 0.1 * (each * mask).sum(1).square().mean()
    (sound + 0.5 * term).backward()

    optimizer.step()
