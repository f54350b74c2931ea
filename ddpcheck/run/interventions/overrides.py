"""Methods of torch that do something else for the length of a run."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from torch.nn.parallel import DistributedDataParallel


@contextlib.contextmanager
def joining(*, counts_all: bool) -> Iterator[None]:
    """DDP's join divides by all ranks, or by those that have not joined yet."""
    cls = DistributedDataParallel
    before: Any = cls.join_hook

    def join_hook(self: Any, **kwargs: Any) -> Any:
        return before(self, **kwargs | {"divide_by_initial_world_size": counts_all})

    cls.join_hook = join_hook  # type: ignore[method-assign]
    try:
        yield
    finally:
        cls.join_hook = before  # type: ignore[method-assign]


@contextlib.contextmanager
def nonreentrant_checkpoints() -> Iterator[None]:
    """Checkpoints do without a backward inside the backward."""
    import torch.utils.checkpoint as module  # noqa: PLC0415

    cls = module.CheckpointFunction
    before = cls.__dict__.get("apply")

    def apply(function: Any, preserve: bool, *args: Any) -> Any:  # noqa: FBT001
        return module.checkpoint(
            function, *args, use_reentrant=False, preserve_rng_state=preserve
        )

    cls.apply = staticmethod(apply)  # type: ignore[method-assign]
    try:
        yield
    finally:
        if before is None:
            del cls.apply
        else:
            cls.apply = before  # type: ignore[method-assign]
