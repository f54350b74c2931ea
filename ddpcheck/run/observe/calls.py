"""A call of a collective by user code, as what a report can say of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist

from ddpcheck.run.process import callers
from ddpcheck.run.spec import CollectiveCount, CollectiveEnd

_MAX_FRAMES = 40


def described(
    name: str, count: int, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> CollectiveCount:
    """Returns the call that these arguments make; the caller's caller is user code.

    The tensor is the first that is passed itself, else the first of a list.
    """
    values = [*args, *kwargs.values()]
    tensor = next(_tensors(values), None)
    groups = [v for v in values if isinstance(v, dist.ProcessGroup)]
    return CollectiveCount(
        count=count,
        name=name,
        shape=None if tensor is None else tuple(tensor.shape),
        dtype="" if tensor is None else str(tensor.dtype).removeprefix("torch."),
        where=_where(),
        of_all=all(group is dist.group.WORLD for group in groups),
    )


def at_step(
    told: CollectiveCount | CollectiveEnd, step: int
) -> CollectiveCount | CollectiveEnd:
    """Returns the message with its step, where it has one."""
    return replace(told, step=step) if isinstance(told, CollectiveCount) else told


def _tensors(values: list[Any]) -> Iterator[torch.Tensor]:
    yield from (v for v in values if isinstance(v, torch.Tensor))
    for value in values:
        if isinstance(value, list | tuple):
            yield from (v for v in value if isinstance(v, torch.Tensor))


def _where() -> str:
    """Returns the innermost frame that is neither torch's nor ours: "file.py:12"."""
    frame = callers.frame(1)
    for _ in range(_MAX_FRAMES):
        if frame is None:
            break
        if not callers.module_of(frame).startswith(("torch.", "ddpcheck.")):
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    return ""
