"""Where a report's differences lie: every tensor row, the worst and the first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ddpcheck.report.data import JUDGED, Difference, Quantity, Report
from ddpcheck.report.render import numbers, status


@dataclass(frozen=True, slots=True, kw_only=True)
class Located:
    """A difference, and the run and kind of tensor that it belongs to.

    `difference` is None where only the step is known: its row was cut.
    """

    run: int
    kind: str
    step: int
    difference: Difference | None


def rows(report: Report) -> list[Located]:
    """Returns every listed tensor, worst first; equal ones in the order of the runs."""
    found = [
        Located(run=index, kind=kind, step=row.step, difference=row)
        for index, run in enumerate(report.runs)
        for kind in status.KINDS
        for row in _listed(status.quantity(run, kind))
    ]
    return sorted(found, key=_badness, reverse=True)


def worst(report: Report) -> Located | None:
    """Returns the largest judged difference above tolerance, None without one."""
    return next(_judged(report), None)


def worst_of_run(report: Report, index: int) -> Difference | None:
    """Returns the largest judged difference of one run above tolerance, or None."""
    found = (row.difference for row in _judged(report) if row.run == index)
    return next(found, None)


def first(report: Report) -> Located | None:
    """Returns the earliest difference above tolerance, None without one.

    Earliest is by step, then by the order in which a step computes its tensors;
    among equals the worst.
    """
    found = [*_differing(report), *_steps_only(report)]
    return min(found, key=_earliness, default=None)


def differs(difference: Difference) -> bool:
    """Returns whether the tensor is above tolerance; NaN is."""
    return difference.why is not None or not difference.excess <= 1


def same_tensor(one: Difference, other: Difference) -> bool:
    """Returns whether both are about the same tensor; NaN makes `==` useless here."""
    place = (one.name, one.step, one.rank)
    return place == (other.name, other.step, other.rank)


def _listed(found: Quantity) -> tuple[Difference, ...]:
    worst = found.worst
    if worst is None or any(same_tensor(worst, row) for row in found.tensors):
        return found.tensors
    return (worst, *found.tensors)


def _differing(report: Report) -> list[Located]:
    return [row for row in rows(report) if row.difference and differs(row.difference)]


def _judged(report: Report) -> Iterator[Located]:
    return (row for row in _differing(report) if row.kind in JUDGED)


def _steps_only(report: Report) -> list[Located]:
    """Returns the first step above tolerance of each quantity, without its tensor."""
    return [
        Located(run=index, kind=kind, step=steps[0], difference=None)
        for index, run in enumerate(report.runs)
        for kind in status.KINDS
        if (steps := _steps_above(status.quantity(run, kind)))
    ]


def _steps_above(found: Quantity) -> list[int]:
    return [s for s, value in enumerate(found.excess_by_step) if not value <= 1]


def _earliness(row: Located) -> tuple[int, int]:
    return row.step, status.KINDS.index(row.kind)


def _badness(row: Located) -> tuple[bool, float]:
    assert row.difference is not None
    return numbers.rank_key(row.difference.excess)
