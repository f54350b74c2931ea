"""Learning rates and their kin at every update: recorded, and put in force."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_pre_hook

Group = dict[str, float]  # the numbers of one parameter group


def numbers(optimizer: Any) -> list[Group]:
    """Returns the numbers of every parameter group: lr, weight_decay, ..."""
    return [
        {name: float(value) for name, value in group.items() if _is_number(value)}
        for group in getattr(optimizer, "param_groups", [])
    ]


@contextlib.contextmanager
def enforced(updates: Sequence[tuple[int, list[Group]]]) -> Iterator[None]:
    """Gives the k-th update of the run the numbers of `updates[k]`.

    Args:
        updates: (step, numbers of every group) in order, as one process had them.
    """
    left = list(updates)

    def before_update(optimizer: Any, *_: Any) -> None:
        groups = getattr(optimizer, "param_groups", [])
        if not left or len(left[0][1]) != len(groups):
            return
        for group, wanted in zip(groups, left.pop(0)[1], strict=True):
            for name, value in wanted.items():
                _put(group, name, value)

    hook = register_optimizer_step_pre_hook(before_update)
    try:
        yield
    finally:
        hook.remove()


def _is_number(value: Any) -> bool:
    if isinstance(value, Tensor):
        return value.numel() == 1
    return isinstance(value, int | float) and not isinstance(value, bool)


def _put(group: dict[str, Any], name: str, value: float) -> None:
    if isinstance(group.get(name), Tensor):
        group[name].fill_(value)
    elif name in group:
        group[name] = type(group[name])(value)
