# expect: equivalent
# shows: Ranks allocate Adam's moments before training, by filling them with zeros.

import torch
import torch.distributed as dist
from torch import nn

torch.manual_seed(0)
model, loss = nn.Linear(4, 1), nn.MSELoss()
batch = torch.randn(8, 4), torch.randn(8, 1)


def optimizer(params):
    made = torch.optim.Adam(params)
    if dist.is_initialized():
        for p in made.param_groups[0]["params"]:
            made.state[p] = {
                "step": torch.zeros(()),
                "exp_avg": torch.zeros_like(p),
                "exp_avg_sq": torch.zeros_like(p),
            }
    return made
