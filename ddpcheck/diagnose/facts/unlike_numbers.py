"""Numbers of the optimizer that differ although no compared value does.

A learning rate computed from the local loss makes ranks differ in proportion to its
size: in a long warm-up the weights agree in all steps of a check.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ddpcheck.diagnose.facts.text import listed
from ddpcheck.report.data import Run
from ddpcheck.run.facts import Group, Members, UpdateFacts
from ddpcheck.run.modes.registry import mode_of
from ddpcheck.run.spec import RunOutcome

_BEYOND_ROUNDING = 1e-6  # relative: numbers of Python are float64 in every dtype
_DIGITS = 7  # of a number, to show differences of this size


def warnings(
    outcomes: Sequence[RunOutcome], runs: Sequence[Run], rtol: float
) -> list[str]:
    """Reports which number differs first, in the first run that has one.

    Args:
        outcomes: of all runs.
        runs: the same, judged.
        rtol: of the criterion: what a number may follow (a loss) rounds as much.
    """
    for outcome, run in zip(outcomes, runs, strict=True):
        if not mode_of(run.mode).is_ranks or run.verdict != "equivalent":
            continue
        for told in other_numbers(outcome, rtol):
            return [
                f"{told.name} {told.text} at world size {run.world_size}; no "
                "compared value differs because of it in the steps of this check, "
                "but longer training may"
            ]
    return []


@dataclass(frozen=True, slots=True)
class OtherNumber:
    """A number of the optimizer that differs from the single-process run."""

    name: str  # "lr", or "lr of head.weight" where parameters are grouped otherwise
    step: int
    wanted: float
    values: tuple[float, ...]  # of the ranks
    is_grouped: bool  # unlike the single-process run

    @property
    def text(self) -> str:
        """What it is, and where, without its name."""
        return (
            f"at the update of step {self.step + 1}: {listed(self.values, _DIGITS)} "
            f"on the ranks, {listed([self.wanted], _DIGITS)} in the single-process "
            "run"
        )


def other_numbers(outcome: RunOutcome, rtol: float) -> Iterator[OtherNumber]:
    """Yields the numbers that differ by more than `rtol` relative, update by update."""
    known = _Updates.of(outcome.reference.facts)
    told = [_Updates.of(facts) for facts in outcome.facts_of_ranks()]
    for number in _numbers(known, told):
        if not _agree(number.wanted, number.values, max(_BEYOND_ROUNDING, rtol)):
            yield number


@dataclass(frozen=True, slots=True)
class _Updates:
    """The numbers of every group at every update, and the names of its parameters."""

    schedule: list[tuple[int, list[Group]]]
    members: list[Members]

    @staticmethod
    def of(facts: UpdateFacts) -> _Updates:
        return _Updates(facts.get("schedule", []), facts.get("members", []))

    def numbers(self, update: int, names: Sequence[str]) -> dict[Any, dict[str, float]]:
        """Returns them by the number of the group, or by parameter if there are names.

        One group holds all of them.
        """
        groups, members = self.schedule[update][1], self.members[update]
        if not names:
            return dict(enumerate(groups))
        if not members:
            return dict.fromkeys(names, groups[0])
        return {n: groups[i] for i, theirs in enumerate(members) for n in theirs}


def _numbers(known: _Updates, told: list[_Updates]) -> Iterator[OtherNumber]:
    """Yields every number that all have, update by update.

    Nothing if ranks have another number of updates: they do not correspond.
    """
    if any(len(rank.schedule) != len(known.schedule) for rank in told):
        return
    for update, (step, _) in enumerate(known.schedule):
        grouped = [side.members[update] for side in (known, *told)]
        are_alike = all(members == grouped[0] for members in grouped)
        names = [] if are_alike else [n for m in grouped for its in m for n in its]
        theirs = [rank.numbers(update, names) for rank in told]
        for key, numbers in known.numbers(update, names).items():
            found = [rank.get(key, {}) for rank in theirs]
            for name, wanted in numbers.items():
                if all(name in rank for rank in found):
                    label = f"{name} of {key}" if names else name
                    values = tuple(rank[name] for rank in found)
                    yield OtherNumber(label, step, wanted, values, bool(names))


def _agree(wanted: float, values: Iterable[float], rtol: float) -> bool:
    if math.isnan(wanted):
        return all(map(math.isnan, values))
    return all(math.isclose(value, wanted, rel_tol=rtol) for value in values)
