"""The numbers of a script's optimizers, update by update: schedules and decisions.

Where ranks have batches of their own size, an update has the samples of W updates of
the single process, and a pass has 1/W of its updates. A schedule that is made for the
passes then has other numbers, update by update, and is right; one that is made for the
single process's updates does not get to its end.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from ddpcheck.diagnose.facts.text import listed
from ddpcheck.report.data import Finding, Fix
from ddpcheck.run.script.events import Built, Updated

_LEAST = 3  # updates of ranks with which a schedule is known
_END, _FAR = 0.02, 0.2  # parts of the largest learning rate: at the end, far from it
_RTOL = 1e-6
_POWERS = 0.0, 0.5, 1.0  # of the world size, by which a learning rate may be scaled

Series = list[float]  # a number of an optimizer's group, after each update


def follows_passes(ranks: Sequence[Sequence[Any]], single: Sequence[Any]) -> bool:
    """Returns whether each number of the optimizers follows the passes over the data.

    After each update of the ranks it is between that of the single process after as
    many updates and that after as many samples; a learning rate may be scaled, too.

    Args:
        ranks: the events of each rank.
        single: those of the single process.
    """
    world, count = len(ranks), 0
    if not grows(ranks, single):
        return False
    for name, many, one in _numbers(ranks[0], single):
        known = min(len(many), len(one) // world)
        if known < _LEAST:
            return False
        powers = _POWERS if name.endswith("lr") else (0.0,)  # max_lr, initial_lr
        scaled = ([world**power * value for value in one] for power in powers)
        if not any(_is_between(many[:known], each, world) for each in scaled):
            return False
        count += 1
    return count > 0


def grows(ranks: Sequence[Sequence[Any]], single: Sequence[Any]) -> bool:
    """Returns whether an update of W ranks has W times the samples of one process."""
    every = [_usual_rows(events) for events in (*ranks, single)]
    return len(ranks) > 1 and every[0] > 0 and len(set(every)) == 1


def apart(ranks: Sequence[Sequence[Any]]) -> Finding | None:
    """Returns the finding on ranks that update their weights with other numbers.

    Only where their weights differ after that: each rank may decide on numbers of its
    own, and all come to the same.

    Args:
        ranks: the events of each rank.
    """
    each = [[e for e in own if isinstance(e, Updated)] for own in ranks]
    for step, updates in enumerate(zip(*each, strict=False)):
        for number, place, name in sorted(set.intersection(*map(_names, updates))):
            values = [update.groups[number][place][name] for update in updates]
            if not all(_close(values[0], value) for value in values):
                return _apart(step, name, values) if _part(each, step) else None
    return None


def _part(each: Sequence[Sequence[Updated]], step: int) -> bool:
    """Returns whether weights are the same before a step, and differ later on."""
    alike = [
        len({update.weights for update in updates}) == 1
        for updates in zip(*each, strict=False)
    ]
    return all(alike[:step]) and not all(alike)


def _apart(step: int, name: str, values: Sequence[float]) -> Finding:
    return Finding(
        slug="sync/control-desync",
        link="update",
        runs=(),
        summary=f"the ranks update their weights with different numbers: {name} is "
        "decided from per-rank numbers",
        facts=(f"{name} after update {step + 1} of the script: {listed(values)}",),
        fix=Fix(
            text="all-reduce the number that decides, so that all ranks make the same "
            "decision",
            code="dist.all_reduce(metric)\nmetric /= dist.get_world_size()",
        ),
    )


def unfinished(ranks: Sequence[Sequence[Any]], single: Sequence[Any]) -> Finding | None:
    """Returns the finding on a schedule that ranks do not get to the end of.

    Only the single process, which has more updates, does.

    Args:
        ranks: the events of each rank, which came to its end.
        single: those of the single process, which did so, too.
    """
    world = len(ranks)
    if not grows(ranks, single):
        return None
    for name, many, one in _numbers(ranks[0], single):
        if name != "lr" or len(many) < _LEAST:
            continue
        is_shorter = abs(len(one) - world * len(many)) < 2 * world
        scale = many[0] / one[0] if one[0] else 0.0
        same = all(_close(scale * a, b) for a, b in zip(one, many, strict=False))
        ends = min(one[-2:]) <= _END * max(one)
        if is_shorter and same and ends and many[-1] >= _FAR * max(many):
            found = _unfinished(many, one, world)
            return dataclasses.replace(found, where=_place_of_updates(ranks[0]))
    return None


def _place_of_updates(events: Sequence[Any]) -> str | None:
    """Returns the line of the script that makes the updates."""
    built = (dict(e.places) for e in events if isinstance(e, Built))
    return next(built, {}).get("optimizer")


def _unfinished(many: Series, one: Series, world: int) -> Finding:
    return Finding(
        slug="sync/control-desync",
        link="update",
        runs=(),
        summary="the schedule of the learning rate is made for the updates of the "
        f"single process; {world} ranks make 1/{world} as many, and do not get to its "
        "end",
        facts=(
            f"updates of the whole training: {len(one)} in the single process, "
            f"{len(many)} on each rank",
            f"learning rate after the last one: {min(one[-2:]):.4g} in the single "
            f"process, of at most {max(one):.4g}; {many[-1]:.4g} on the ranks, of at "
            f"most {max(many):.4g}",
        ),
        fix=Fix(
            text="take the length of the schedule from the sharded loader",
            code="total_steps = epochs * len(loader)",
        ),
    )


def _usual_rows(events: Sequence[Any]) -> int:
    """Returns how many rows the model is given in most updates."""
    sizes = Counter(sum(e.rows) for e in events if isinstance(e, Updated))
    return max(sizes, key=lambda size: (sizes[size], size), default=0)


def _numbers(
    rank: Sequence[Any], single: Sequence[Any]
) -> Iterator[tuple[str, Series, Series]]:
    """Yields the name of each number of a group, and its values in both runs."""
    many, one = ([e for e in own if isinstance(e, Updated)] for own in (rank, single))
    if not many or not one:
        return
    for key in _names(many[0]) & _names(one[0]):
        yield key[-1], _series(many, key), _series(one, key)


def _names(update: Updated) -> set[tuple[int, int, str]]:
    return {
        (number, place, name)
        for number, groups in enumerate(update.groups)
        for place, group in enumerate(groups)
        for name in group
    }


def _series(updates: list[Updated], key: tuple[int, int, str]) -> Series:
    number, place, name = key
    groups = [u.groups[number][place] for u in updates if number < len(u.groups)]
    return [group[name] for group in groups if name in group]


def _is_between(many: Series, one: Series, world: int) -> bool:
    """Returns whether each value is between those by updates and by samples."""
    for index, value in enumerate(many):
        own = one[index : world * (index + 2)]
        least, most = min(own), max(own)
        slack = _RTOL * max(abs(least), abs(most))
        if not least - slack <= value <= most + slack:
            return False
    return True


def _close(one: float, two: float) -> bool:
    return math.isclose(one, two, rel_tol=_RTOL, abs_tol=0.0)
