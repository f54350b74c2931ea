# expect: norm/syncbn-implementation verified
# shows: Synchronised over groups. Each rank is alone in its group.

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

model = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))
def wrap(model):
    groups = [dist.new_group([r]) for r in range(world())]
    convert = nn.SyncBatchNorm.convert_sync_batchnorm
    return DDP(convert(model, process_group=groups[rank()]))
