"""nn.DataParallel: one process, a replica of the model for each shard."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ddpcheck.report.data import NotCompared
from ddpcheck.run.facts import Sizes
from ddpcheck.run.modes.mode import InRank, Mode

if TYPE_CHECKING:
    from torch import nn


def _wrapped(rank: InRank, model: nn.Module) -> nn.Module:
    from ddpcheck.run.modes.data_parallel import (  # noqa: PLC0415 (imports torch)
        data_parallel,
    )

    spec = rank.spec
    return data_parallel(
        model, spec.world_size, spec.device, rank.around_replica, fixes=spec.fixes
    )


def _chunks(batch_size: int, world_size: int) -> tuple[int, ...]:
    """Returns the sizes of torch.chunk's parts, which may be fewer."""
    chunk = -(-batch_size // world_size)
    return tuple(min(chunk, batch_size - s) for s in range(0, batch_size, chunk))


def _bytes(sizes: Sizes, world_size: int) -> int:
    """Returns the bytes of a model and of a copy of it for each further replica."""
    copies = world_size - 1
    return sizes.trained + copies * (sizes.parameters + sizes.gradients)


DP = Mode(
    name="dp",
    title="DataParallel",
    entry_point="ddpcheck.run.modes.jobs.candidate:candidate",
    is_choice=True,
    is_default=True,
    left_out_where=(
        ("has_wrap", "the target has a `wrap` of its own, for ranks"),
        (
            "asks_distributed",
            "the target asks torch.distributed, so it is written for ranks",
        ),
    ),
    unsynchronised=NotCompared(
        what="DataParallel with synchronised batch norm",
        why="nn.SyncBatchNorm needs one process per device",
    ),
    shard_sizes=_chunks,
    bytes_at_work=_bytes,
    wrap=_wrapped,
    has_replicas=True,
    cannot_run="DataParallel cannot run this target",
    explained_by="replicas",
)
