# expect: collective/no-autograd verified
# shows: Gather with gradient under no grad. As Lightning's all_gather does it, by
#   default.

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

model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 5))
batch = torch.randn(8, 4) + torch.linspace(-1, 1, 8)[:, None], torch.zeros(8)
def train_step(model, optimizer, batch):
    optimizer.zero_grad()
    z = nn.functional.normalize(model(batch[0]), dim=1)
    keys, labels = z.roll(1, 1), torch.arange(len(z))
    if dist.is_initialized():
        with torch.no_grad():
            parts = dnn.all_gather(keys.contiguous())
        whole, labels = torch.cat(parts), labels + rank() * len(z)
        keys = whole if whole.requires_grad else torch.cat(
            [*parts[:rank()], keys, *parts[rank() + 1 :]]
        )
    nn.functional.cross_entropy(z @ keys.T / 0.3, labels).backward()
    optimizer.step()
