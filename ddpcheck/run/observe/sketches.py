"""Sketches: a few sums of a tensor's numbers with random signs.

The map is linear: the sketch of a linear combination of tensors is that combination of
their sketches, so its coefficients can be computed from a few numbers of each.

For each call of a communication hook the sketches of its bucket and of its result are
kept; diagnose/search/hook_weights.py derives how much of each rank is in the result.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ddpcheck.run.facts import HookSketch

SIZE = 64  # numbers of a sketch


def sketch(values: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Returns sums over every 64th number, float64, shape (64,).

    Args:
        values: of any shape and dtype; complex ones count as pairs.
        generator: of the signs; by default all tensors get the same signs.
    """
    generator = generator or torch.Generator().manual_seed(0)
    values = values.detach().to("cpu")
    if values.is_complex():
        values = torch.view_as_real(values)
    flat = values.double().reshape(-1)
    signs = torch.randint(0, 2, flat.shape, generator=generator) * 2.0 - 1
    whole = torch.nn.functional.pad(flat * signs, (0, -len(flat) % SIZE))
    return whole.view(-1, SIZE).sum(0)


_MOST_CALLS = 32  # sketches of later calls are not kept


def sketching(
    hook: Callable[[Any, Any], Any], sketches: list[HookSketch]
) -> Callable[..., Any]:
    """Returns the hook, which now appends the sketches of each call to `sketches`."""

    @functools.wraps(hook)
    def call(state: Any, bucket: Any) -> Any:
        if len(sketches) >= _MOST_CALLS:
            return hook(state, bucket)
        buffer = bucket.buffer()
        before, size = sketch(buffer), buffer.numel()
        place = len(sketches)
        sketches.append((_numbers(before), (), size))

        def note(future: Any) -> Any:
            value = future.value()
            if isinstance(value, Tensor):
                sketches[place] = _numbers(before), _numbers(sketch(value)), size
            return value

        future = hook(state, bucket)
        return future.then(note) if hasattr(future, "then") else future

    return call


def _numbers(values: Tensor) -> tuple[float, ...]:
    return tuple(values.tolist())
