# expect: ddp/param-replaced-after-wrap verified
# shows: Weight norm once training begins. Its first step adds parameters, which the
#   optimizer has beside the former ones.

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
        return self.head(self.body(x).tanh())
model = Net()
def wrap(model):
    return DDP(model, find_unused_parameters=True)
def train_step(model, optimizer, batch):
    body = getattr(model, "module", model).body
    if "weight" in body._parameters:
        nn.utils.weight_norm(body)
        optimizer.add_param_group({"params": [body.weight_g, body.weight_v]})
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(batch[0]), batch[1]).backward()
    optimizer.step()
