# expect: equivalent
# shows: DDP reduces over a group of one rank, and the step averages over all ranks.

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

torch.manual_seed(0)
model, batch = nn.Linear(4, 1), (torch.randn(8, 4), torch.randn(8, 1))


def wrap(model):
    alone = [dist.new_group([rank]) for rank in range(dist.get_world_size())]
    return DDP(model, process_group=alone[dist.get_rank()])


def train_step(model, optimizer, batch):
    x, y = batch
    optimizer.zero_grad()
    (model(x) - y).square().mean().backward()
    for p in model.parameters():
        if dist.is_initialized():
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()
    optimizer.step()
