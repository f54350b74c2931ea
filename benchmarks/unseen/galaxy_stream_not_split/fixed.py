import itertools

import torch
import torch.distributed as dist
from torch import nn


def galaxies():
    g = torch.Generator().manual_seed(471)
    while True:
        yield torch.randn(10, generator=g)


def split_by_node(stream):
    rank, world = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    return itertools.islice(stream, rank, None, world)


stream = None


def model():
    global stream
    stream = split_by_node(galaxies())
    torch.manual_seed(470)
    return nn.Sequential(nn.Linear(10, 20), nn.GELU(), nn.Linear(20, 10))


def batch():
    spectra = torch.randn(16, 10, generator=torch.Generator().manual_seed(472))
    return spectra, spectra.roll(-1, 1)


def loss(output, target):
    return nn.functional.huber_loss(output, target)


def train_step(model, optimizer, batch):
    spectra, target = batch
    unlabelled = torch.stack(list(itertools.islice(stream, len(spectra)))).to(spectra.dtype)
    x = torch.cat([spectra, unlabelled])
    y = torch.cat([target, unlabelled.roll(-1, 1)])
    optimizer.zero_grad()
    loss(model(x), y).backward()
    optimizer.step()
