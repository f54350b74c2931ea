"""Numbers of the optimizer that are not one process's, though nothing judged differs.

A learning rate that follows the rank's own loss parts the ranks by as much as it is
large: under a long warm-up the weights agree for as many steps as a check has.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ddpcheck.diagnose.text import listed
from ddpcheck.report import Run
from ddpcheck.session import RunOutcome

_BEYOND_ROUNDING = 1e-6  # relative: numbers of Python are float64 in every dtype
_DIGITS = 7  # that show what differs by this much


def warnings(
    outcomes: Sequence[RunOutcome], runs: Sequence[Run], rtol: float
) -> list[str]:
    """Says which number differs first, in the first run that has one.

    Args:
        outcomes: of all runs.
        runs: the same, judged.
        rtol: of the criterion: what a number may follow (a loss) rounds as much.
    """
    for outcome, run in zip(outcomes, runs, strict=True):
        if run.mode != "ddp" or run.verdict != "equivalent":
            continue
        for told in other_numbers(outcome, rtol):
            return [
                f"{told.name} {told.text} at world size {run.world_size}; nothing "
                "judged differs by it in the steps of this check, longer training may"
            ]
    return []


@dataclass(frozen=True, slots=True)
class OtherNumber:
    """A number of the optimizer that ranks do not have as one process has it."""

    name: str
    step: int
    wanted: float
    values: tuple[float, ...]  # of the ranks

    @property
    def text(self) -> str:
        """What it is, and where, without its name."""
        return (
            f"at the update of step {self.step + 1}: {listed(self.values, _DIGITS)} on "
            f"the ranks, {listed([self.wanted], _DIGITS)} in one process"
        )


def other_numbers(outcome: RunOutcome, rtol: float) -> Iterator[OtherNumber]:
    """Yields the numbers that differ by more than `rtol` relative, update by update."""
    known = outcome.reference.facts["schedule"]
    ranks = range(len(outcome.ranks))
    told = [outcome.facts(rank).get("schedule", []) for rank in ranks]
    for step, name, wanted, values in _numbers(known, told):
        if not _agree(wanted, values, max(_BEYOND_ROUNDING, rtol)):
            yield OtherNumber(name, step, wanted, tuple(values))


def _numbers(
    known: list[Any], told: list[list[Any]]
) -> Iterator[tuple[int, str, float, list[float]]]:
    """Yields (step, name, one process's value, every rank's), update by update.

    Nothing where ranks update another number of times: they do not correspond.
    """
    if any(len(updates) != len(known) for updates in told):
        return
    for (step, groups), *ranks in zip(known, *told, strict=True):
        for i, group in enumerate(groups):
            theirs = [found[i] if i < len(found) else {} for _, found in ranks]
            for name, wanted in group.items():
                if all(name in numbers for numbers in theirs):
                    yield step, name, wanted, [numbers[name] for numbers in theirs]


def _agree(wanted: float, values: list[float], rtol: float) -> bool:
    if math.isnan(wanted):
        return all(map(math.isnan, values))
    return all(math.isclose(value, wanted, rel_tol=rtol) for value in values)
