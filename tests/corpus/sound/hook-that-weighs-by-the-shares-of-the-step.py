# expect: equivalent
# shows: A communication hook weights each rank's gradients by its share of the labels
#   of this very step.

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
LABELS = [[1, -1, 2, 0, 1, -1, -1, 1], [1, -1, -1, 0, 1, 0, -1, 1]]
def batch(step):
    g = torch.Generator().manual_seed(step)
    labels = LABELS[step % 2] if step < 2 else [2, 1, 0, 1, -1, -1, 0, -1]
    return torch.randn(8, 4, generator=g), torch.tensor(labels)
masked = nn.CrossEntropyLoss(ignore_index=-1)
class Share:
    value = 0.5
    def count(self, y):
        mine = (y >= 0).sum().double()
        every = mine.clone()
        if dist.is_initialized():
            dist.all_reduce(every)
        self.value = float(mine / every)
share = Share()
def hook(share, bucket):
    done = dist.all_reduce(bucket.buffer().mul_(share.value), async_op=True).get_future()
    return done.then(lambda future: future.value()[0])
def wrap(model):
    ddp = DDP(model)
    ddp.register_comm_hook(share, hook)
    return ddp
def train_step(model, optimizer, batch):
    x, y = batch
    optimizer.zero_grad()
    share.count(y)
    masked(model(x), y).backward()
    
    optimizer.step()
