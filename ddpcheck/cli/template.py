"""The target that --init writes: it passes, and comments show what to edit."""

from __future__ import annotations

from pathlib import Path

from ddpcheck.errors.problem import usage_error

TEXT = '''\
"""What ddpcheck checks: a model, its global batch and its loss.

Replace the three functions with your own, then run:  ddpcheck {name}
"""

import torch
from torch import nn
from torch.nn import functional


def model():
    """Returns the model as training starts with it."""
    # Every rank builds its own copy: the same weights each time.
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))


def batch():
    """Returns (inputs, targets) of the global batch, sharded among the ranks.

    Dimension 0 of every tensor is the sample. inputs may be a tensor (model(x)), a
    tuple (model(*x)) or a dict (model(**x)); targets any structure of tensors.
    """
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(16, 8, generator=generator)
    targets = torch.randint(0, 3, (16,), generator=generator)
    return inputs, targets


def loss(output, target):
    """Returns a scalar. On ranks it sees one shard, and may use torch.distributed."""
    return functional.cross_entropy(output, target)


# Optional, with the defaults:
#
# def collate(samples):  # batch() then returns the list of samples, of any sizes
#     inputs, targets = zip(*samples)
#     return nn.utils.rnn.pad_sequence(inputs, batch_first=True), torch.stack(targets)
#
# def optimizer(params):
#     return torch.optim.SGD(params, lr=0.1)
#
# def wrap(model):  # what a rank trains
#     # With find_unused_parameters=True where a parameter gets no gradient.
#     return nn.parallel.DistributedDataParallel(model)
#
# def train_step(model, optimizer, batch):  # in place of the usual four lines
#     inputs, targets = batch
#     optimizer.zero_grad()
#     loss(model(inputs), targets).backward()
#     optimizer.step()
#
# world_sizes = [2, 4, 8]
# simulate = [16]  # more ranks, simulated in one process; at most one per sample
# tolerance = 1e-9
# accept = {{"norm/local-batch-stats": "the batch norms are frozen after warm-up"}}
'''


def write(path: Path) -> None:
    """Writes the template; never over a file that is there.

    Raises:
        UsageError: init-path.
    """
    try:
        with path.open("x", encoding="utf-8") as stream:
            stream.write(TEXT.format(name=path))
    except OSError as error:
        exists = isinstance(error, FileExistsError)
        raise usage_error(
            slug="init-path",
            message=f"cannot write a template to {path}",
            expected="a path where nothing is yet, in a folder that exists",
            found="a file or folder" if exists else error.strerror or str(error),
            fix="another path: ddpcheck --init other.py",
        ) from None
