"""Gradients at the end of a step in which no optimizer stepped: sums to go on with.

A step may be a micro-batch, and the optimizer step only in every fourth. Until then
what lies in `.grad` is no gradient of all samples, and nothing uses it as one: ranks
that reduce with the last of them are right. So it is not judged.
"""

from __future__ import annotations

from dataclasses import dataclass

from ddpcheck.compare.trace import Writer
from ddpcheck.run.observe.naming_steps import names_a_step
from ddpcheck.run.steps import Training


@dataclass(frozen=True, slots=True)
class Unfinished:
    """The steps of one process whose gradients are such sums, and if all of them."""

    steps: list[int]
    are_all: bool


def of(writer: Writer, training: Training) -> Unfinished:
    """Returns the steps that end with sums of gradients.

    Where no step has an update, and none is written to have one, the gradients are what
    it is about: they are no sums. An optimizer that torch does not know of shows by
    what it does to the weights.
    """
    steps = [step for step in training.bare if not _moves(writer, training, step)]
    are_all = bool(steps) and len(steps) == len(training.losses)
    if are_all and not names_a_step(training.target.train_step):
        return Unfinished([], are_all=False)
    return Unfinished(steps, are_all=are_all)


def _moves(writer: Writer, training: Training, step: int) -> bool:
    """Returns whether something writes the model's trained weights in a step."""
    before = ("weights", step - 1) if step else ("initial", 0)
    known = training.names.order
    names = [n for n in writer.index.groups[("gradients", step)] if n in known]
    return not writer.are_same(before, ("weights", step), names)
