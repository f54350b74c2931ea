# expect: sync/clip-before-reduce verified
# shows: Hook that clips before it averages. With one bucket the clipped mean is what
#   one process has.

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

def clipped(state, bucket):
    flat = bucket.buffer()
    flat.mul_((0.05 / (flat.norm() + 1e-6)).clamp(max=1.0)).div_(dist.get_world_size())
    work = dist.all_reduce(flat, async_op=True)
    return work.get_future().then(lambda done: done.value()[0])
model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
batch = torch.randn(8, 4) * torch.linspace(0.5, 3, 8)[:, None], torch.arange(8) % 3
def wrap(model):
    ddp = DDP(model)
    ddp.register_comm_hook(None, clipped)
    return ddp
def train_step(model, optimizer, batch):
    x, y = batch
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    if not isinstance(model, DDP):
        norm = torch.stack([p.grad.norm() for p in model.parameters()]).norm()
        for p in model.parameters():
            p.grad.mul_((0.05 / (norm + 1e-6)).clamp(max=1.0))
    optimizer.step()
