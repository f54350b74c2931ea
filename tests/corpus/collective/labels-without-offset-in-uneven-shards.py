# expect: collective/layout verified
# shows: Labels without offset, shards of 7 and 6 rows. As many as the ranks before have.

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn


def model():
    torch.manual_seed(0)
    return nn.Linear(6, 8)


def batch():
    return torch.randn(13, 6, generator=torch.Generator().manual_seed(1)), torch.zeros(13)


def of_all(rows):
    if not dist.is_initialized():
        return rows
    sizes = [torch.zeros(1, dtype=torch.long) for _ in range(dist.get_world_size())]
    dist.all_gather(sizes, torch.tensor([len(rows)]))
    most = int(max(sizes))
    padded = F.pad(rows, (0, 0, 0, most - len(rows)))
    parts = dist.nn.functional.all_gather(padded.contiguous())
    return torch.cat([part[: int(n)] for part, n in zip(parts, sizes)])


def loss(output, target):
    keys = of_all(F.normalize(output.tanh(), dim=1))
    world = dist.get_world_size() if dist.is_initialized() else 1
    labels = torch.arange(len(output))
    logits = F.normalize(output, dim=1) @ keys.T / 0.1
    return F.cross_entropy(logits, labels, reduction="sum") * world / len(keys)
