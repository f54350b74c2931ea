"""The intervention collectives.label_offset: labels count from the rank's first row."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn


@contextlib.contextmanager
def offset_by_rank(
    rows: Callable[[], int], model: nn.Module, *, within: bool
) -> Iterator[None]:
    """Makes `torch.arange` over the rank's own rows count on from the ranks before.

    Only an arange of that length, from 0 by 1, is changed: the labels of a loss
    against gathered rows. Outside the model's forward, where no positions are counted,
    one of several rows per sample too.

    Args:
        rows: gives the number of samples on this rank.
        model: whose forward may count its own rows, to choose from each.
        within: whether those of its forward are labels, too.
    """
    plain = torch.arange
    depth = 0

    def enter(*_: object) -> None:
        nonlocal depth
        depth += 1

    def leave(*_: object) -> None:
        nonlocal depth
        depth -= 1

    def arange(*args: Any, **kwargs: Any) -> Any:
        made = plain(*args, **kwargs)
        own = rows()
        is_labels = (
            made.dim() == 1
            and len(made) > 0
            and not made.is_floating_point()
            and own > 0
            and (depth == 0 or (within and len(made) == own))
            and len(made) % own == 0
            and int(made[0]) == 0
            and int(made[-1]) == len(made) - 1
        )
        return made + dist.get_rank() * len(made) if is_labels else made

    hooks = [
        model.register_forward_pre_hook(enter),
        model.register_forward_hook(leave, always_call=True),
    ]
    torch.arange = arange
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
        torch.arange = plain
