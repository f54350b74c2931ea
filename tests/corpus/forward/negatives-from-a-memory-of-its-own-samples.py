# expect: forward/batch-coupled verified
# shows: Negatives from a memory of its own samples: a module mixes samples.

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

class Memory(nn.Module):
    def __init__(self):
        super().__init__()
        self.net, self.bank = nn.Linear(4, 5), [torch.eye(5)[:2]]
    def forward(self, x):
        query, key = self.net(x), self.net(x.flip(1))
        negatives = torch.cat([each.to(key) for each in self.bank])
        self.bank.append(key.detach())
        return torch.cat([(query * key).sum(1)[:, None], query @ negatives.T], 1)
model = Memory()
def loss(output, target):
    return nn.functional.cross_entropy(output, torch.zeros_like(target))
