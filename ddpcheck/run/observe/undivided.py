"""What a batch holds that cannot be cut into shards: every rank would train on all.

Training on ranks that all have the whole batch equals one process, so that no
comparison would show it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ddpcheck.compare import tree
from ddpcheck.errors.problem import Problem, UsageError
from ddpcheck.target.target import Target

_DEPTH = 3  # of attributes that are looked through
_SHARED = (nn.Module, torch.optim.Optimizer, torch.Generator)  # never samples


def check(target: Target, batch: Any, size: int) -> None:
    """Says which part of a batch of `size` samples is no tensor and yet has samples.

    Raises:
        UsageError: target-batch-undivided.
    """
    if tree.num_samples(batch) is not None:
        return  # its samples are
    for path, value in tree.leaves(batch):
        if not isinstance(value, _SHARED) and _holds_numbers(value):
            found = f"{type(value).__name__}, which holds tensors or arrays"
            raise _undivided(target, path, found)
    for path, items in tree.lists(batch):
        if len(items) == size and _is_per_sample(path, items):
            found = f"a list of {size}, the first a {type(items[0]).__name__}"
            raise _undivided(target, path, found)


def named_lists(batches: list[Any], sizes: list[int]) -> list[str]:
    """Returns the names of lists that have as many numbers as samples in some step."""
    paths = {
        path: None
        for batch, size in zip(batches, sizes, strict=True)
        for path in lists_of_numbers(batch, size)
    }
    return [tree.batch_name(path) for path in paths]


def lists_of_numbers(batch: Any, size: int) -> list[str]:
    """Returns the paths of lists with as many numbers as samples: theirs, or not.

    Not of the rows of a list of lists, which is no list of numbers.
    """
    if tree.num_samples(batch) is not None:
        return []
    found = {path: items for path, items in tree.lists(batch) if len(items) == size}
    return [
        path
        for path, items in found.items()
        if all(isinstance(item, int | float) for item in items)
        and path.rpartition(".")[0] not in found
    ]


def _is_per_sample(path: str, items: list[Any]) -> bool:
    """Returns whether a list of as many things as samples has one for each.

    Texts, rows of several lengths, and numbers among the targets; not numbers or None
    among the inputs, which may be strides or a cache.
    """
    if all(isinstance(item, str | bytes) for item in items):
        return True
    if all(isinstance(item, list) for item in items):
        return len({len(item) for item in items}) > 1 and not any(tree.tensors(items))
    numbers = all(isinstance(item, int | float) for item in items)
    return numbers and path.partition(".")[0] == "1"


def _holds_numbers(value: Any, depth: int = _DEPTH) -> bool:
    if isinstance(value, Tensor | np.ndarray):
        return value.ndim > 0
    if depth == 0 or isinstance(value, type):
        return False
    inside = tree.tensors(value) if tree.is_container(value) else iter(())
    return any(True for _ in inside) or any(
        _holds_numbers(part, depth - 1) for part in _attributes(value)
    )


def _attributes(value: Any) -> Iterator[Any]:
    yield from getattr(value, "__dict__", {}).values()
    for kind in type(value).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            yield getattr(value, name, None)


def _undivided(target: Target, path: str, found: str) -> UsageError:
    return UsageError(
        Problem(
            slug="target-batch-undivided",
            message=f"{target.name}: {tree.batch_name(path)} cannot be cut into shards",
            expected="tensors whose dimension 0 is the sample, in tuples and dicts",
            found=found,
            fix="pad and stack it, or let the batch hold sample numbers "
            "(torch.arange) that the model looks up",
        )
    )
