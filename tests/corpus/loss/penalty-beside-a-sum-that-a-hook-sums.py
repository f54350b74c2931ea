# expect: loss/regularizer-scale verified
# shows: Penalty beside a sum that a hook sums. A hook that sums makes up for a sum;
#   what every rank has in full it counts twice.

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
    def forward(self, x):
        return super().forward(x), self.weight.square().sum()
model = Net(4, 3)
def loss(output, target):
    logits, penalty = output
    return nn.functional.cross_entropy(logits, target, reduction="sum") + penalty
def sum_hook(_, bucket):
    done = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
    return done.then(lambda future: future.value()[0])
def wrap(model):
    wrapped = DDP(model)
    wrapped.register_comm_hook(None, sum_hook)
    return wrapped
