"""The intervention collectives.label_offset: labels count from the rank's first row."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist


@contextlib.contextmanager
def offset_by_rank(rows: Callable[[], int]) -> Iterator[None]:
    """Makes `torch.arange` over the rank's own rows count on from the ranks before.

    `rows` gives the number of samples on this rank. Only an arange of that length,
    from 0 by 1, is changed: the labels of a loss against gathered rows.
    """
    plain = torch.arange

    def arange(*args: Any, **kwargs: Any) -> Any:
        made = plain(*args, **kwargs)
        own = rows()
        is_labels = (
            made.dim() == 1
            and len(made) == own
            and not made.is_floating_point()
            and own > 0
            and int(made[0]) == 0
            and int(made[-1]) == own - 1
        )
        return made + dist.get_rank() * own if is_labels else made

    torch.arange = arange
    try:
        yield
    finally:
        torch.arange = plain
