# expect: sync/control-desync verified
# shows: Closure that returns the own loss. It calls the closure as often as the loss
#   says: the ranks wait for each other.

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

model = nn.Linear(4, 3)
batch = torch.linspace(-1, 2, 8)[:, None].expand(8, 4).clone(), torch.arange(8) % 3
def optimizer(params):
    return torch.optim.LBFGS(params, max_iter=6, line_search_fn="strong_wolfe")
def train_step(model, optimizer, batch):
    x, y = batch
    def closure():
        optimizer.zero_grad()
        value = nn.functional.cross_entropy(model(x), y)
        value.backward()
        return value
    optimizer.step(closure)
