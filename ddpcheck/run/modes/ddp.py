"""DistributedDataParallel, or the target's own `wrap`, on real ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ddpcheck.run.facts import Sizes
from ddpcheck.run.modes.mode import InRank, Mode

if TYPE_CHECKING:
    from torch import nn


def wrapped(rank: InRank, model: nn.Module) -> nn.Module:
    """Returns what a rank trains: what `wrap` returns, by default DDP."""
    from ddpcheck.run.interventions import apply  # noqa: PLC0415 (imports torch)
    from ddpcheck.run.model import model as models  # noqa: PLC0415

    with apply.around_wrap(rank.spec.fixes):
        return models.wrap(rank.target, rank.spec, model, find_unused=rank.find_unused)


def bytes_of_ranks(sizes: Sizes, world_size: int) -> int:
    """Returns the bytes of all ranks.

    Source: DDP copies gradients into buckets of their size
    (https://docs.pytorch.org/docs/stable/notes/ddp.html).
    """
    return world_size * (sizes.trained + sizes.gradients)


DDP = Mode(
    name="ddp",
    title="DistributedDataParallel",
    entry_point="ddpcheck.run.modes.jobs.candidate:candidate",
    is_choice=True,
    is_default=True,
    is_ranks=True,
    bytes_at_work=bytes_of_ranks,
    wrap=wrapped,
    is_wrapped=True,
    explained_by="ranks",
)
