"""Numbers of the optimizer that are not one process's, though nothing judged differs.

A learning rate that follows the rank's own loss parts the ranks by as much as it is
large: under a long warm-up the weights agree for as many steps as a check has.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
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
        known = outcome.reference.facts["schedule"]
        ranks = range(len(outcome.ranks))
        told = [outcome.facts(rank).get("schedule", []) for rank in ranks]
        for step, name, wanted, values in _numbers(known, told):
            if not _agree(wanted, values, max(_BEYOND_ROUNDING, rtol)):
                return [
                    f"{name} at the update of step {step + 1}: "
                    f"{listed(values, _DIGITS)} on the ranks at world size "
                    f"{run.world_size}, {listed([wanted], _DIGITS)} in one process; "
                    "nothing judged differs by it in the steps of this check, longer "
                    "training may"
                ]
    return []


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
