"""DDP at any world size, all ranks played by one process (jobs/simulated.py)."""

from __future__ import annotations

from ddpcheck.report.data import NotCompared
from ddpcheck.run.facts import Sizes
from ddpcheck.run.modes.mode import Mode


def _bytes(sizes: Sizes, _: int) -> int:
    """Returns the bytes of a model and of the sum of gradients that all ranks share."""
    return sizes.trained + sizes.gradients


SIM = Mode(
    name="sim",
    title="DDP with simulated ranks",
    entry_point="ddpcheck.run.modes.jobs.simulated:simulated",
    unsynchronised=NotCompared(
        what="simulated ranks with synchronised batch norm",
        why="it is a collective inside forward, which one process cannot answer",
    ),
    where="for {world_size} simulated ranks",
    bytes_at_work=_bytes,
    # A shard takes no longer than the whole batch.
    passes=lambda world_size: world_size + 1.0,
    explained_by="stand-in",
)
