# expect: sync/control-desync verified
# shows: Numbers in lists and dicts: ranks make different decisions from equal
#   gradients.

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

import numpy as np
kept = {"scale": 1.0, "means": [np.zeros(3)]}
model = nn.Linear(4, 3)
batch = torch.randn(8, 4), torch.randn(8, 3)
def loss(output, target):
    means = torch.from_numpy(kept["means"][0])
    value = kept["scale"] * (output - target - means).square().mean()
    kept["means"][0] += 0.5 * output.detach().mean(0).numpy()
    kept["scale"] = 0.5 + float(output.detach().square().mean())
    return value
