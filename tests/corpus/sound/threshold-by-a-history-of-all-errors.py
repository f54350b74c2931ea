# expect: equivalent
# shows: A threshold follows the errors of earlier steps, which are averaged over ranks.

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
        self.net, self.beta, self.history = nn.Linear(4, 4), 2.0, []
    def forward(self, x):
        return self.net(x)
model = Net()
batch = torch.randn(8, 4), torch.randn(8, 4) * torch.linspace(0.2, 3, 8)[:, None]
def train_step(model, optimizer, batch):
    own = getattr(model, "module", model)
    optimizer.zero_grad()
    output = model(batch[0])
    nn.functional.smooth_l1_loss(output, batch[1], beta=own.beta).backward()
    optimizer.step()
    error = (output - batch[1]).detach().abs().mean()
    if dist.is_initialized():
        dist.all_reduce(error)
    own.history.append(float(error) / world())
    own.beta = min(2.0, sorted(own.history)[len(own.history) // 2])
