"""The passes of `large_model.py` by themselves, and its training under bare DDP.

A module of its own: the tool's process imports no torch, and its size is measured.
"""

from __future__ import annotations

import os
import time

import gpt2
import torch

from ddpcheck.compare import tree
from ddpcheck.ranks.worker import Context
from ddpcheck.run.model.model import DTYPES, cast

STEPS = 4


def passes(context: Context, *, dtype: str) -> float:
    """Returns the seconds of four forwards and backwards on this rank's shard."""
    model = gpt2.model()
    cast(model, DTYPES[dtype])
    seat = context.seat
    if not seat.world_size:  # one process takes all cores, as in a check
        torch.set_num_threads(os.cpu_count() or 1)
    taken = 0.0
    for step in range(STEPS):
        batch = tree.shard(gpt2.batch(step), seat.rank, max(1, seat.world_size))
        started = time.perf_counter()
        model.zero_grad()
        gpt2.loss(model(batch[0]), batch[1]).backward()
        taken += time.perf_counter() - started
    return taken


def train(context: Context, *, dtype: str, wrap: str) -> None:
    """Trains this rank's shards under DDP and nothing else."""
    model = gpt2.model()
    cast(model, DTYPES[dtype])
    wrapped = getattr(gpt2, wrap)(model)
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.01)
    seat = context.seat
    for step in range(STEPS - 1):
        tokens, following = tree.shard(gpt2.batch(step), seat.rank, seat.world_size)
        optimizer.zero_grad()
        gpt2.loss(wrapped(tokens), following).backward()
        optimizer.step()
