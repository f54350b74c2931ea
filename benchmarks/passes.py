"""The forward and backward passes of `large_model.py` by themselves.

A module of its own: the tool's process imports no torch, and its size is measured.
"""

from __future__ import annotations

import time

import gpt2

from ddpcheck import tree
from ddpcheck.ranks.worker import Context
from ddpcheck.run.model import DTYPES, cast

STEPS = 4


def passes(context: Context, *, dtype: str) -> float:
    """Returns the seconds of four forwards and backwards on this rank's shard."""
    model = gpt2.model()
    cast(model, DTYPES[dtype])
    seat = context.seat
    taken = 0.0
    for step in range(STEPS):
        batch = tree.shard(gpt2.batch(step), seat.rank, max(1, seat.world_size))
        started = time.perf_counter()
        model.zero_grad()
        gpt2.loss(model(batch[0]), batch[1]).backward()
        taken += time.perf_counter() - started
    return taken
