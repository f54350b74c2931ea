"""Which parameters one process makes use of: that get gradients, and are updated."""

from __future__ import annotations

from dataclasses import dataclass

from ddpcheck.compare.trace import Index
from ddpcheck.run.model import contents
from ddpcheck.run.steps import OF_OTHERS, Training


@dataclass(frozen=True, slots=True)
class Used:
    """Names of parameters that are not, or not always.

    `never`: without a gradient in all updates of step 0. `not_always`: in any, and the
    model holds them, so that DDP would wait for their gradients; what another optimizer
    of the file holds is none of its. `untaken`: with gradients that no optimizer step
    has taken.
    """

    never: list[str]
    not_always: list[str]
    untaken: list[str]


def of(index: Index, training: Training) -> Used:
    """Returns what a trace tells of a training."""
    updates = [
        {name.partition("@")[0]: entry is not None for name, entry in group.items()}
        for (quantity, step), group in index.groups.items()
        if not step and quantity.startswith("gradients")
        if not quantity.startswith(OF_OTHERS)
    ]
    names = updates[0] if updates else {}
    waits_for = training.names.parameters(training.model).keys() - _replaced(training)
    idle = [n for n in names if not all(u.get(n) for u in updates)]
    return Used(
        never=[n for n in names if not any(u.get(n) for u in updates)],
        not_always=[n for n in idle if n in waits_for],
        untaken=_untaken(index, training),
    )


def with_gradient(index: Index, at: int) -> set[str]:
    """Returns the parameters with a gradient in any update of a step."""
    return {
        name.partition("@")[0]
        for (quantity, step), group in index.groups.items()
        if step == at and quantity.startswith("gradients")
        for name, entry in group.items()
        if entry is not None
    }


def _replaced(training: Training) -> set[str]:
    """Returns the trained tensors that the model does not hold any more.

    They are no parameters without use: a step, tying weights, has put others there.
    """
    held = {id(parameter) for parameter in contents.parameters(training.model)}
    known = set(training.names.order)
    return {
        name
        for name, tensor in training.parameters().items()
        if name in known and id(tensor) not in held
    }


def _untaken(index: Index, training: Training) -> list[str]:
    if not training.taken:
        return []
    steps = range(len(training.losses))
    given = set[str]().union(*(with_gradient(index, at) for at in steps))
    names = training.parameters()
    return [name for name in names if name in given - training.taken.keys()]
