"""Lists and dicts that DataParallel's replicas share, as if each had its own.

A replica is a shallow copy of its module: what one of them appends to a list, all have.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ddpcheck.run.model import contents
from ddpcheck.run.observe.external_state import MODULES_OWN

_SHARED = (list, dict, set)


class SharedObjects:
    """Those of a module, while its replicas are called one after the other."""

    def __init__(self, module: nn.Module) -> None:
        self._objects = [
            value
            for part in contents.modules(module)
            for name, value in vars(part).items()
            if name not in MODULES_OWN and type(value) in _SHARED
        ]
        self._before = list(map(copy.copy, self._objects))
        self._after: list[list[Any]] = []  # by replica

    def alone(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Returns the call of a replica that finds what was there before all."""

        def called(*args: Any, **kwargs: Any) -> Any:
            for held, before in zip(self._objects, self._before, strict=True):
                _fill(held, before)
            output = call(*args, **kwargs)
            self._after.append(list(map(copy.copy, self._objects)))
            return output

        return called

    def join(self, sizes: Sequence[int]) -> None:
        """Leaves what one process would: of the rows of all, the mean of numbers."""
        for number, held in enumerate(self._objects):
            _fill(held, _joined([after[number] for after in self._after], sizes))


def _fill(held: Any, content: Any) -> None:
    held.clear()
    (held.extend if isinstance(held, list) else held.update)(content)


def _joined(versions: Sequence[Any], sizes: Sequence[int]) -> Any:
    first, last = versions[0], versions[-1]
    if isinstance(first, list) and len(set(map(len, versions))) == 1:
        return [_one(values, sizes) for values in zip(*versions, strict=True)]
    if isinstance(first, dict) and all(v.keys() == first.keys() for v in versions):
        return {key: _one([v[key] for v in versions], sizes) for key in first}
    return last


def _one(values: Sequence[Any], sizes: Sequence[int]) -> Any:
    """Returns the rows of all, the mean of numbers, or what the last replica has."""
    last = values[-1]
    if not all(isinstance(value, Tensor) for value in values):
        return last
    each = list(zip(values, sizes, strict=True))
    if all(t.dim() and len(t) == size for t, size in each):
        return torch.cat(list(values))
    if last.dim() or not sum(sizes):
        return last
    return sum(t * size for t, size in each) / sum(sizes)
