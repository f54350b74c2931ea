# expect: loss/batch-coupled verified
# shows: Weights by the last two losses. Weights of tasks follow from how their losses,
#   as the shard has them, went down.

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

class Tasks:
    def __init__(self):
        self.seen = []
    def weights(self, losses):
        self.seen = [*self.seen, losses.detach()][-2:]
        ratio = self.seen[-1] / self.seen[0]
        return 3 * torch.softmax(ratio / 2, 0)
x = torch.randn(8, 4)
model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
batch = x, x[:, :3] * torch.tensor([1.0, 3.0, 0.3]) + torch.arange(8.0)[:, None] / 4
def optimizer(params):
    made = torch.optim.SGD(params, lr=0.1)
    made.tasks = Tasks()
    return made
def train_step(model, optimizer, batch):
    x, y = batch
    losses = (model(x) - y).square().mean(0)
    loss = (optimizer.tasks.weights(losses) * losses).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
