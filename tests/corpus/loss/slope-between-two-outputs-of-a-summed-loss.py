# expect: loss/sum-reduction verified
# shows: Slope between two outputs of a summed loss. One output is made of the other,
#   and the step differentiates between them.

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
        self.style, self.image = nn.Linear(4, 5), nn.Linear(5, 6)
    def forward(self, x):
        w = self.style(x)
        return self.image(w.tanh()), w
model = Net()

def train_step(model, optimizer, batch):
    x, y = batch
    optimizer.zero_grad()

    image, w = model(x)
    (slope,) = torch.autograd.grad(image.square().sum(), w, create_graph=True)
    (image.square().sum() + slope.square().sum()).backward()
    optimizer.step()
