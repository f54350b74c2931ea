"""What user code does by its rank's number, done alike on all ranks."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch.distributed as dist

from ddpcheck.run.process import callers


@contextlib.contextmanager
def told_rank(rank: int) -> Iterator[None]:
    """User code that asks for its rank is told this one; 0 is what one process is."""
    before = dist.get_rank

    def get_rank(*args: Any, **kwargs: Any) -> int:
        name = callers.module_of(callers.frame(1))
        is_users = not name.startswith(("torch.", "ddpcheck."))
        return rank if is_users else before(*args, **kwargs)

    dist.get_rank = get_rank
    try:
        yield
    finally:
        dist.get_rank = before
