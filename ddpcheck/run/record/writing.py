"""Writes the tensors of the single-process run, and reads facts from that trace.

`Standstill`: steps that leave nothing to compare. Ranks that have lost an all-reduce,
or that sum instead of average, equal the single-process run where everything is zero.

`Unfinished`: gradients at the end of a step without an optimizer step. The step may be
a micro-batch, with the optimizer step in every fourth; until then `.grad` is a partial
sum that nothing uses, and ranks may all-reduce in the last micro-batch only. So it is
not compared.

`Used`: which parameters get gradients and are updated.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from ddpcheck.compare.trace import Index, Writer
from ddpcheck.run.model import contents
from ddpcheck.run.observe.used_names import names_a_step
from ddpcheck.run.steps import OF_OTHERS, Training


@dataclass(slots=True)
class WritingRecorder:
    """Writes all groups to a trace, and notes those that are not finite."""

    writer: Writer
    not_finite: list[str] = field(default_factory=list)

    def take(self, quantity: str, step: int, named: dict[str, Tensor | None]) -> None:
        """Appends the group to the trace."""
        # A frozen parameter may be a mask of 1e9: no scale for trained ones.
        fixed = {n for n, t in named.items() if t is not None and not t.requires_grad}
        is_weights = quantity == "weights"
        self.writer.add(quantity, step, named.items(), fixed if is_weights else set())
        index, key = self.writer.index, (quantity, step)
        gradients = quantity.startswith("gradients")
        if (key in index.has_nan and (gradients or is_weights)) or (
            key in index.has_infinity and gradients
        ):
            self.not_finite.append(f"{quantity} at step {step + 1}")


@dataclass(frozen=True, slots=True)
class Standstill:
    """Tensors that are missing in all steps of the single-process run."""

    why: str = ""  # the reason why ranks cannot be judged; "" for none
    is_at_rest: bool = False  # there are gradients, but no weight changes


def standstill_of(writer: Writer, training: Training) -> Standstill:
    """Returns whether the single-process run leaves something to compare."""
    groups = [key for key in writer.index.groups if key[0].startswith("gradients")]
    moves = _moves_any_weight(writer, training)
    if any(writer.index.scale[key] for key in groups):
        return Standstill(is_at_rest=not moves)
    steps = len(training.losses)
    entries = [e for key in groups for e in writer.index.groups[key].values()]
    if any(entries) and (training.schedule or not moves):
        return Standstill(
            why=f"all gradients of the single-process run are 0 in {steps} steps"
        )
    if not moves:
        return Standstill(
            why=f"the single-process run changes no weight in {steps} steps"
        )
    return Standstill()  # a step that uses no gradients of parameters


def _moves_any_weight(writer: Writer, training: Training) -> bool:
    """Returns whether any weight has changed after some step."""
    names, before = writer.index.groups[("initial", 0)], ("initial", 0)
    for step in range(len(training.losses)):
        if not writer.are_same(before, ("weights", step), names):
            return True
        before = ("weights", step)
    return False


@dataclass(frozen=True, slots=True)
class Unfinished:
    """The steps that end with partial sums of gradients, and whether all do."""

    steps: list[int]
    are_all: bool


def unfinished_of(writer: Writer, training: Training) -> Unfinished:
    """Returns the steps that end with partial sums of gradients.

    If no step has an update, and the source of the step calls none, the gradients are
    the result of the step and are compared. An optimizer that is no torch optimizer is
    recognized by the weights that it changes.
    """
    steps = [
        step for step in training.bare if not _moves_weights_in(writer, training, step)
    ]
    are_all = bool(steps) and len(steps) == len(training.losses)
    if are_all and not names_a_step(training.target.train_step):
        return Unfinished([], are_all=False)
    return Unfinished(steps, are_all=are_all)


def _moves_weights_in(writer: Writer, training: Training, step: int) -> bool:
    """Returns whether the model's trained weights change in a step."""
    before = ("weights", step - 1) if step else ("initial", 0)
    known = training.names.order
    names = [n for n in writer.index.groups[("gradients", step)] if n in known]
    return not writer.are_same(before, ("weights", step), names)


@dataclass(frozen=True, slots=True)
class Used:
    """Names of parameters that are not used, or not always.

    `never`: without a gradient in all updates of step 0. `not_always`: without one in
    some, and held by the model, so that DDP waits for their gradients. `untaken`: with
    gradients that no optimizer step has used.
    """

    never: list[str]
    not_always: list[str]
    untaken: list[str]


def used_of(index: Index, training: Training) -> Used:
    """Returns which parameters a training uses, from its trace."""
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

    They do not count as unused: a step that ties weights has replaced them.
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
