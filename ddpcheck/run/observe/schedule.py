"""Learning rates and other numbers of parameter groups: recorded, and replayed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

Group = dict[str, float]  # the numbers of one parameter group
Members = tuple[tuple[str, ...], ...]  # the parameters of every group


def numbers(optimizer: Any) -> list[Group]:
    """Returns the numbers of every parameter group: lr, weight_decay, ..."""
    return [
        {name: float(value) for name, value in group.items() if _is_number(value)}
        for group in getattr(optimizer, "param_groups", [])
    ]


def members(optimizer: Any, parameters: Mapping[str, Tensor]) -> Members:
    """Returns the names of the parameters in every group; () where there is one group.

    Args:
        optimizer: about to update.
        parameters: what it holds, by name.
    """
    groups = getattr(optimizer, "param_groups", [])
    if len(groups) < 2:  # noqa: PLR2004 (nearly always)
        return ()
    names = {id(p): name for name, p in parameters.items()}
    return tuple(
        tuple(names[id(p)] for p in group["params"] if id(p) in names)
        for group in groups
    )


@contextlib.contextmanager
def enforced(
    updates: Sequence[tuple[int, list[Group]]],
    grouped: Sequence[Members],
    parameters: Callable[[], Mapping[str, Tensor]],
) -> Iterator[None]:
    """Runs the k-th update of the run with the numbers of `updates[k]`.

    Args:
        updates: (step, numbers of every group) of the single-process run, in order.
        grouped: the parameters in each of these groups, per update.
        parameters: returns the trained tensors of this run, by name.
    """
    given = _Given(list(zip(updates, grouped, strict=True)), parameters)
    hooks = (
        register_optimizer_step_pre_hook(given.before_update),
        register_optimizer_step_post_hook(given.after_update),
    )
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


@dataclass(slots=True)
class _Given:
    """The single-process numbers, applied during the updates of a run."""

    left: list[tuple[tuple[int, list[Group]], Members]]
    parameters: Callable[[], Mapping[str, Tensor]]
    # The original groups of an optimizer whose groups are replaced during its update.
    own: list[dict[str, Any]] = field(default_factory=list)

    def before_update(self, optimizer: Any, *_: Any) -> None:
        """Sets the optimizer's numbers, and its groups if they differ."""
        if not self.left:
            return
        groups = getattr(optimizer, "param_groups", [])
        (_step, numbers), names = self.left[0]
        if members(optimizer, self.parameters()) != names:
            others = _grouped(groups, numbers, names, self.parameters())
            if others is not None:
                self.own, groups[:] = list(groups), others
        if len(numbers) != len(groups):
            return
        self.left.pop(0)
        for group, wanted in zip(groups, numbers, strict=True):
            for name, value in wanted.items():
                _put(group, name, value)

    def after_update(self, optimizer: Any, *_: Any) -> None:
        """Restores the original groups, which a scheduler relies on."""
        if self.own:
            optimizer.param_groups[:] = self.own
            self.own = []


def _grouped(
    groups: list[dict[str, Any]],
    numbers: list[Group],
    names: Members,
    parameters: Mapping[str, Tensor],
) -> list[dict[str, Any]] | None:
    """Returns the single-process groups, None if the parameters differ."""
    held = {id(p) for group in groups for p in group["params"]}
    theirs = names or (tuple(n for n, p in parameters.items() if id(p) in held),)
    here = [[parameters[n] for n in each if n in parameters] for each in theirs]
    if {id(p) for each in here for p in each} != held or len(theirs) != len(numbers):
        return None
    return [{**groups[0], "params": each} for each in here]


def _is_number(value: Any) -> bool:
    if isinstance(value, Tensor):
        return value.numel() == 1
    return isinstance(value, int | float) and not isinstance(value, bool)


def _put(group: dict[str, Any], name: str, value: float) -> None:
    if isinstance(group.get(name), Tensor):
        group[name].fill_(value)
    elif name in group:
        group[name] = type(group[name])(value)
