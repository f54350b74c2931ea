"""Steps of one process that leave nothing to compare: zero gradients, weights at rest.

Ranks that have lost an all-reduce, or that sum up where they should take the mean,
equal one process all the same where all of it is zero.
"""

from __future__ import annotations

from dataclasses import dataclass

from ddpcheck.compare.trace import Writer
from ddpcheck.run.steps import Training


@dataclass(frozen=True, slots=True)
class Standstill:
    """What did not happen in any step of one process."""

    why: str = ""  # nothing can be said of ranks; "" where something can
    is_at_rest: bool = False  # gradients there are, and no weight moves


def of(writer: Writer, training: Training) -> Standstill:
    """Returns what one process leaves to compare."""
    groups = [key for key in writer.index.groups if key[0].startswith("gradients")]
    moves = _moves(writer, training)
    if any(writer.index.scale[key] for key in groups):
        return Standstill(is_at_rest=not moves)
    steps = len(training.losses)
    entries = [e for key in groups for e in writer.index.groups[key].values()]
    if any(entries) and (training.schedule or not moves):
        return Standstill(why=f"all gradients of one process are 0 in {steps} steps")
    if not moves:
        return Standstill(why=f"one process moves no weight in {steps} steps")
    return Standstill()  # a step that takes no gradients from parameters


def _moves(writer: Writer, training: Training) -> bool:
    """Returns whether any weight is another one after some step."""
    names, before = writer.index.groups[("initial", 0)], ("initial", 0)
    for step in range(len(training.losses)):
        if not writer.are_same(before, ("weights", step), names):
            return True
        before = ("weights", step)
    return False
