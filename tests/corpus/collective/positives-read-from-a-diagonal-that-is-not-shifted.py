# expect: collective/layout verified
# shows: Positives read from a diagonal that is not shifted: the loss joins the gathered
#   tensors in the wrong layout.

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

model = nn.Linear(4, 5)
def loss(output, target):
    every = torch.cat(dnn.all_gather(output)) if dist.is_initialized() else output
    logits = output @ every.T
    return (logits.logsumexp(1) - logits.diag()).mean()
