# expect: ddp/autograd-grad verified
# shows: Weights kept by slopes of the own samples. What the weights are kept in
#   differs, too: why it does says more.

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

class Balancer:
    weight = torch.ones(2)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.first, self.second = (nn.Linear(4, n) for n in (4, 1, 3))
        self.balancer = Balancer()
    def forward(self, x):
        hidden = self.body(x).tanh()
        return self.first(hidden)[:, 0], self.second(hidden)
def model():
    torch.manual_seed(0)
    return Net()
batch = torch.randn(8, 4) * torch.arange(1.0, 9)[:, None], torch.arange(8) % 3
def train_step(model, optimizer, batch):
    net = getattr(model, "module", model)
    optimizer.zero_grad()
    first, second = model(batch[0])
    losses = first.square().mean(), nn.functional.cross_entropy(second, batch[1])
    weight = net.balancer.weight.to(first)
    shared = net.body.weight
    slopes = [torch.autograd.grad(v, shared, retain_graph=True)[0] for v in losses]
    norms = torch.stack([slope.norm() for slope in slopes])
    net.balancer.weight = 2 * norms.flip(0) / norms.sum()
    (weight[0] * losses[0] + weight[1] * losses[1]).backward()
    optimizer.step()
