# expect: sync/clip-before-reduce verified
# shows: Gradients brought to length by post accumulate hooks: gradients are clipped
#   before they are reduced.

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

@torch.no_grad()
def unit(parameter):
    parameter.grad.div_(parameter.grad.norm() + 1e-12)
model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
batch = torch.randn(8, 4) * torch.arange(1.0, 9)[:, None], torch.arange(8) % 3
hooked = []
def train_step(model, optimizer, batch):
    if not hooked:
        hooked.extend(
            p.register_post_accumulate_grad_hook(unit) for p in model.parameters()
        )
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(batch[0]), batch[1]).backward()
    optimizer.step()
