# expect: loss/batch-coupled verified
# shows: Rows of the own samples that are trained again: the loss is not a sum over
#   samples.

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

class Net(nn.Linear):
    hard = None
model = Net(4, 3)
batch = torch.randn(8, 4) * torch.arange(1.0, 9)[:, None], torch.arange(8) % 3
def train_step(model, optimizer, batch):
    net, (x, y) = getattr(model, "module", model), batch
    if net.hard is not None:
        x, y = torch.cat([x, net.hard[0]]), torch.cat([y, net.hard[1]])
    optimizer.zero_grad()
    each = nn.functional.cross_entropy(model(x), y, reduction="none")
    each.mean().backward()
    optimizer.step()
    found = each[: len(batch[1])].detach().topk(len(batch[1]) // 2).indices
    net.hard = batch[0][found], batch[1][found]
