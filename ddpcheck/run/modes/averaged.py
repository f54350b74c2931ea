"""Data parallelism by hand: DDP without its reducer, for the diagnosis.

Every rank computes its local gradients, then all gradients are averaged, whatever wraps
the model (run/model/averaged.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ddpcheck.run.modes import ddp
from ddpcheck.run.modes.mode import InRank, Mode

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from torch import nn

    from ddpcheck.run.steps import Training


def _wrapped(rank: InRank, model: nn.Module) -> nn.Module:
    from ddpcheck.run.model import averaged  # noqa: PLC0415 (imports torch)

    return averaged.replace_ddp(ddp.wrapped(rank, model))


def _averaging(rank: InRank, training: Training) -> AbstractContextManager[None]:
    from ddpcheck.run.model import averaged  # noqa: PLC0415 (imports torch)

    unused: dict[int, dict[str, bool]] = {}
    rank.facts["local_none"] = unused
    return averaged.averaging(
        training.parameters, lambda: unused.setdefault(training.step, {})
    )


AVERAGED = Mode(
    name="averaged",
    title="gradients averaged by hand",
    entry_point="ddpcheck.run.modes.jobs.candidate:candidate",
    is_ranks=True,
    bytes_at_work=ddp.bytes_of_ranks,
    wrap=_wrapped,
    around_training=_averaging,
    notes_rewrites=True,
)
