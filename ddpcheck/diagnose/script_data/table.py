"""Facts of a script's training as functions of the world size: no faults.

A learning rate, a batch size or a number of updates that follows the world size may be
meant so; each row says what it does.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from ddpcheck.diagnose.script_data import judge, streams
from ddpcheck.diagnose.script_data.streams import Stream
from ddpcheck.report.data import Row
from ddpcheck.run.script.events import Drawn, Updated

_WORLD = 8  # for which a number is given where it follows

_UPDATES_OF = "updates of a pass"
_SAMPLES_OF = "samples of an update"
_PER_UPDATE = (_UPDATES_OF, _SAMPLES_OF)
_LR = {
    "equal": "updates have the same size at any world size",
    "times": "updates grow with the world size, as linear scaling wants where the "
    "global batch grows, too",
    "divided": "updates shrink with the world size",
    "other": "updates have another size than in the single process",
}
_BATCH = {
    "equal": "an update trains on as many samples as in the single process",
    "times": "an update trains on more samples: a pass has fewer updates, each of a "
    "mean over more samples",
    "divided": "an update trains on fewer samples: a pass has more updates",
    "other": "an update trains on another number of samples than in the single process",
}
_UPDATES = {
    "equal": "a pass has as many updates as in the single process",
    "times": "a pass has more updates: a schedule that counts updates gets further in "
    "it",
    "divided": "a pass has fewer updates: a schedule that counts updates, or was made "
    "for the single process, is not at its end when the passes are",
    "other": "a pass has another number of updates than in the single process",
}
_BATCHES = {
    "equal": "every rank draws as many batches as the single process in a pass",
    "times": "every rank draws more batches than the single process in a pass",
    "divided": "ranks share the batches of a pass: a number taken from the length of "
    "the loader changes with the world size",
    "other": "ranks draw another number of batches than the single process in a pass",
}
_SCHEDULE = {
    "equal": "the schedule is the same, update by update",
    "times": "the schedule gives a learning rate that grows with the world size",
    "divided": "the schedule gives a learning rate that shrinks with the world size",
    "other": "the schedule is another than in the single process",
}


def table(ranks: Sequence[Sequence[Any]], single: Sequence[Any]) -> tuple[Row, ...]:
    """Returns the facts that the recordings have, in the order of a step.

    Args:
        ranks: the events of each rank.
        single: those of the single process.
    """
    world = len(ranks)
    if not world:
        return ()
    many, one = _updates(ranks[0]), _updates(single)
    rows: list[Row] = []
    each = [streams.streams(events) for events in ranks]
    own = streams.streams(single)
    pairs = list(zip(zip(*each, strict=False), own, strict=False))
    # Where ranks draw the global batch, an update trains on the rows that they cut out.
    cuts = len(pairs) == 1 and judge.cut_by_hand(ranks)
    given = _given_by_step(ranks) if cuts else None
    for number, (of_ranks, of_one) in enumerate(pairs, 1):
        suffix = f" of loader {number}" if len(pairs) > 1 else ""
        rows += _of_loader(of_ranks, of_one, suffix, given)
    if _draws_nothing(ranks[0]) or _draws_nothing(single):
        # Batches are drawn before their steps: which step has which is not seen.
        rows = [row for row in rows if not row.what.startswith(_PER_UPDATE)]
    updates = [row for row in rows if row.what.startswith(_UPDATES_OF)]
    first = updates[0] if len(updates) == 1 else None
    schedule = _schedule(many, one, world, first)
    return (*_rates(many, one, world), *schedule, *rows)


def shares_passes(rows: Sequence[Row]) -> bool:
    """Returns whether ranks share the updates of a pass, as far as the facts tell.

    Where each makes as many as the single process, all train on the whole data, and a
    schedule that advances W times as far in an update is over before the passes are.
    """
    lengths = [row for row in rows if row.what.startswith(_UPDATES_OF)]
    return not any(row.single == row.ranks > 1 for row in lengths)


def _updates(events: Sequence[Any]) -> list[Updated]:
    return [event for event in events if isinstance(event, Updated)]


def _draws_nothing(events: Sequence[Any]) -> bool:
    """Returns whether there is an update before which nothing was drawn for it."""
    drawn = {event.step for event in events if isinstance(event, Drawn)}
    return bool(drawn) and any(one.step not in drawn for one in _updates(events))


def _row(
    what: str, one: float, many: float, world: int, effects: dict[str, str]
) -> Row:
    kind = _relation(one, many, world)
    at: dict[str, Callable[[], float | None]] = {
        "equal": lambda: one,
        "times": lambda: one * _WORLD,
        "divided": lambda: one / _WORLD,
        "other": lambda: None,
    }
    return Row(
        what=what,
        single=one,
        ranks=many,
        world_size=world,
        at_8=_counted(at[kind](), one, many),
        effect=effects[kind],
    )


def _counted(value: float | None, *like: float) -> float | None:
    """Returns a number; None for a part of something that is counted."""
    if value is None or any(isinstance(number, float) for number in like):
        return value
    return int(value) if value == int(value) else None


def _relation(one: float, many: float, world: int) -> str:
    """Returns how a number follows the world size."""
    if _close(one, many):
        return "equal"
    if _close(one * world, many):
        return "times"
    return "divided" if _close(one, many * world) else "other"


def _close(one: float, two: float) -> bool:
    return math.isclose(one, two, rel_tol=1e-9, abs_tol=0.0)


def _groups(update: Updated) -> dict[tuple[int, int], float]:
    """Returns the learning rates after an update, by optimizer and group."""
    return {
        (number, place): group["lr"]
        for number, groups in enumerate(update.groups)
        for place, group in enumerate(groups)
        if "lr" in group
    }


def _rates(many: list[Updated], one: list[Updated], world: int) -> list[Row]:
    """Returns the learning rates after the first update; equal ones once."""
    if not many or not one:
        return []
    first, own = _groups(many[0]), _groups(one[0])
    found: dict[tuple[float, float], tuple[int, int]] = {}
    for key in first.keys() & own.keys():
        pair = own[key], first[key]
        found[pair] = min(key, found.get(pair, key))
    when = " after update 1" if _moves(many, one) else ""
    return [
        _row(f"learning rate{_of(key, len(found))}{when}", *pair, world, _LR)
        for pair, key in sorted(found.items(), key=lambda item: item[1])
    ]


def _of(key: tuple[int, int], count: int) -> str:
    number, place = key
    return f" of optimizer {number + 1}, group {place + 1}" if count > 1 else ""


def _schedule(
    many: list[Updated], one: list[Updated], world: int, updates: Row | None
) -> list[Row]:
    """Returns the learning rate after a later update, if a schedule changes it.

    Args:
        many: the updates of a rank.
        one: those of the single process.
        world: how many ranks there are.
        updates: the row on the updates of a pass.
    """
    last = min(len(many), len(one)) - 1
    if not _moves(many, one):
        return []
    for key in sorted(_groups(many[0]).keys() & _groups(one[0]).keys()):
        rates = [_groups(each).get(key, math.nan) for each in many]
        alone = [_groups(each).get(key, math.nan) for each in one]
        if len(set(rates)) == 1 and len(set(alone)) == 1:
            continue
        what = f"learning rate after update {last + 1}"
        row = _row(what, alone[last], rates[last], world, _SCHEDULE)
        is_faster = _is_faster(alone, rates, world)
        effect = row.effect
        if is_faster:
            effect = f"the schedule advances {world} times as far in every update"
        if updates is not None:
            effect += _in_passes(row, updates, is_faster=is_faster)
        return [
            dataclasses.replace(
                row, at_8=None if is_faster else row.at_8, effect=effect
            )
        ]
    return []


def _in_passes(row: Row, updates: Row, *, is_faster: bool) -> str:
    """Returns what a schedule that counts updates is, counted in passes."""
    times = _relation(updates.single, updates.ranks, row.world_size)
    if is_faster and times == "equal":
        return f": it ends after 1/{row.world_size} of the passes"
    if is_faster and times == "divided":
        return ", and a pass has fewer updates: by passes it is the same"
    if times == "divided" and row.effect == _SCHEDULE["equal"]:
        return (
            f"; a pass has fewer updates: by passes it needs {row.world_size} "
            "times as long"
        )
    return ""


def _moves(many: list[Updated], one: list[Updated]) -> bool:
    """Returns whether a learning rate changes in the recording."""
    return any(
        _groups(update) != _groups(updates[0])
        for updates in (many, one)
        for update in updates
    )


def _is_faster(alone: list[float], rates: list[float], world: int) -> bool:
    """Returns whether update k has the single process's learning rate of update Wk."""
    pairs = list(zip(alone[world - 1 :: world], rates, strict=False))
    moves = len({one for one, _ in pairs}) > 2  # noqa: PLR2004 (two may be a step of it)
    return moves and all(_close(one, rate) for one, rate in pairs)


def _given_by_step(ranks: Sequence[Sequence[Any]]) -> list[dict[int, int]]:
    """Returns how many rows each rank's model is given in each update."""
    return [{one.step: sum(one.rows) for one in _updates(events)} for events in ranks]


def _of_loader(
    of_ranks: Sequence[Stream],
    of_one: Stream,
    suffix: str,
    given: list[dict[int, int]] | None,
) -> list[Row]:
    """Returns the rows on one loader.

    Args:
        of_ranks: what each rank draws.
        of_one: what the single process draws.
        suffix: which loader it is, if there are several.
        given: what each rank trains on in each update, None for what it draws.
    """
    world = len(of_ranks)
    sizes = given or [_samples_by_step(stream) for stream in of_ranks]
    steps = [step for step in sizes[0] if all(step in size for size in sizes)]
    total = Counter([sum(size[step] for size in sizes) for step in steps])
    own = Counter(_samples_by_step(of_one).values())
    rows = []
    if _usual(own) and _usual(total):
        what = f"{_SAMPLES_OF}{suffix}"
        rows.append(_row(what, _usual(own), _usual(total), world, _BATCH))
    lengths = [_length(stream) for stream in of_ranks]
    alone = _length(of_one)
    if alone and lengths[0] and len(set(lengths)) == 1:
        what = f"batches of a pass{suffix}"
        rows.append(_row(what, alone, lengths[0], world, _BATCHES))
        per, per_one = _per_update(of_ranks[0]), _per_update(of_one)
        updates = math.ceil(lengths[0] / per)
        what = f"{_UPDATES_OF}{suffix}"
        rows.append(_row(what, math.ceil(alone / per_one), updates, world, _UPDATES))
    return rows


def _samples_by_step(stream: Stream) -> dict[int, int]:
    found: Counter[int] = Counter()
    for one in stream:
        for batch in one.drawn:
            found[batch.step] += len(batch.samples)
    return found


def _usual(sizes: Counter[int]) -> int:
    """Returns the most frequent number, the larger of two: last batches are smaller."""
    return max(sizes, key=lambda size: (sizes[size], size), default=0)


def _length(stream: Stream) -> int | None:
    """Returns how many batches a pass has."""
    whole = [len(one.drawn) for one in stream if one.is_whole]
    return whole[0] if whole else stream[0].loader.batches


def _per_update(stream: Stream) -> int:
    """Returns how many batches an update trains on."""
    batches = Counter(batch.step for one in stream for batch in one.drawn)
    return _usual(Counter(batches.values()))
