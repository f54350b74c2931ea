"""What a communication hook is given and what it returns, as sketches.

They tell how much of each rank's gradient is in the result, which
diagnose/search/hook_weights.py reads.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch import Tensor

from ddpcheck.run.observe.sketch import sketch

# (of the bucket before the hook, of what it returns, numbers in the bucket)
Told = tuple[tuple[float, ...], tuple[float, ...], int]

_MOST_CALLS = 32  # whose sketches are kept


def watched(hook: Callable[[Any, Any], Any], told: list[Told]) -> Callable[..., Any]:
    """Returns the hook, which appends to `told` what it did."""

    @functools.wraps(hook)
    def call(state: Any, bucket: Any) -> Any:
        if len(told) >= _MOST_CALLS:
            return hook(state, bucket)
        buffer = bucket.buffer()
        before, size = sketch(buffer), buffer.numel()
        place = len(told)
        told.append((_numbers(before), (), size))

        def note(future: Any) -> Any:
            value = future.value()
            if isinstance(value, Tensor):
                told[place] = _numbers(before), _numbers(sketch(value)), size
            return value

        future = hook(state, bucket)
        return future.then(note) if hasattr(future, "then") else future

    return call


def _numbers(values: Tensor) -> tuple[float, ...]:
    return tuple(values.tolist())
