# expect: sync/collective-mismatch verified
# shows: Points counted where a rank has any. A rank without visible points returns
#   before the collective that the others call.

import torch
import torch.distributed as dist
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
inputs, points = torch.randn(8, 4), torch.randn(8, 3)
everywhere = torch.ones(8, 3, dtype=torch.float64)
first_half = (torch.arange(8) < 4).double()[:, None].expand(8, 3)

def batch(step):
    return inputs, (points, first_half if step == 1 else everywhere)

def loss(output, target):
    points, visible = target
    error = ((output - points).abs() * visible).sum()
    if visible.sum() == 0:
        return error * 0
    count, world = visible.sum(), 1
    if dist.is_initialized():
        world = dist.get_world_size()
        dist.all_reduce(count)
    return error * world / count
