"""What a resumed script has not restored: it, against the run that went on.

Events of three runs of the same ranks: one that goes on, one up to update K, and one
that was started again after that. The updates of the last are compared with those of
the first that have the same number.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ddpcheck.diagnose.facts.text import names, number
from ddpcheck.report.data import Finding, Fix, NotCompared
from ddpcheck.run.script.events import Drawn, Elements, Loader, Moment, Passed

ORDER, STATE, RANDOM = (
    "data/resume-order",
    "state/lost-at-resume",
    "rng/lost-at-resume",
)
SLUGS = (ORDER, STATE, RANDOM)

# A checkpoint holds float32 exactly; a file of bfloat16 is another training.
RTOL = 1e-5
_Group = Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """What the comparison found.

    `start`: after how many updates of the run that went on the resumed one begins.
    `updates`: how many were compared. `tensors`: how many weights, buffers and numbers
    of the optimizers at its begin, and `lost`: how many of these differ.
    """

    findings: list[Finding]
    not_compared: tuple[NotCompared, ...]
    start: int
    updates: int
    tensors: int
    lost: int


def moments(events: Iterable[Any]) -> list[Moment]:
    """Returns the moments of a process, in order."""
    return [event for event in events if isinstance(event, Moment)]


def batch(ranks: Sequence[Sequence[Any]], step: int) -> int:
    """Returns how many samples all ranks draw for an update; 0 where none are seen."""
    return sum(
        len(event.samples)
        for events in ranks
        for event in events
        if isinstance(event, Drawn) and event.step == step
    )


def repeats(one: Sequence[Sequence[Any]], other: Sequence[Sequence[Any]]) -> int | None:
    """Returns the first update before which two runs from the start are not the same.

    None where they are the same. Samples that differ have differed in the weights
    after them.
    """
    for mine, theirs in zip(one, other, strict=True):
        for a, b in zip(moments(mine), moments(theirs), strict=False):
            if a.ended == b.ended and _apart(a.weights, b.weights):
                return a.step
    return None


def start_of(whole: Sequence[Any], resumed: Sequence[Any], at: int) -> int:
    """Returns after how many updates of one run the other one begins: by its weights.

    Args:
        whole: the events of a rank of the run that went on.
        resumed: those of the rank that was started again.
        at: the update at which it should begin; the nearest one of those alike.
    """
    first = moments(resumed)[0].weights
    far = {one.step: _distance(one.weights, first) for one in moments(whole)}
    return min(far, key=lambda step: (far[step], abs(step - at)))


def compared(
    whole: Sequence[Sequence[Any]], resumed: Sequence[Sequence[Any]], start: int
) -> Compared:
    """Returns what differs in a resumed run.

    Args:
        whole: the events of each rank of the run that went on.
        resumed: those of each rank of the run that was started again.
        start: after how many updates it begins.
    """
    pairs = [
        list(_pairs(mine, theirs, start))
        for mine, theirs in zip(whole, resumed, strict=True)
    ]
    order, left_out = _order(whole, resumed, start, min(map(len, pairs)))
    tensors, lost = _count(pairs[0][0]) if pairs[0] else (0, 0)
    found = [order, _state(whole, pairs, order is not None)]
    if not any(found):
        found.append(_random(pairs))
    return Compared(
        findings=[one for one in found if one is not None],
        not_compared=left_out,
        start=start,
        updates=min(map(len, pairs)),
        tensors=tensors,
        lost=lost,
    )


Pair = tuple[Moment, Moment]  # of the run that went on, of the resumed one


def _pairs(whole: Sequence[Any], resumed: Sequence[Any], start: int) -> Iterator[Pair]:
    known = {one.step: one for one in moments(whole)}
    for one in moments(resumed):
        other = known.get(one.step + start)
        if other is not None and other.ended == one.ended:
            yield other, one


def _made(
    slug: str, link: str, summary: str, facts: Iterable[str], fix: str
) -> Finding:
    return Finding(
        slug=slug,
        link=link,
        runs=(),
        summary=summary,
        facts=tuple(facts),
        fix=Fix(text=fix),
    )


# Samples.

_BY_LOADER = (
    "save the epoch and the position in it; call set_epoch(epoch), then skip the "
    "batches that were trained on, on every rank"
)
_BY_HAND = (
    "save and load, on every rank, the state of the generator that draws the batches, "
    "or seed it by the number of the update"
)


def _order(
    whole: Sequence[Sequence[Any]],
    resumed: Sequence[Sequence[Any]],
    start: int,
    updates: int,
) -> tuple[Finding | None, tuple[NotCompared, ...]]:
    """Returns the finding on the first update that draws other samples."""
    differs: dict[int, tuple[int, str]] = {}  # by rank: the update, and how
    seen = False
    for rank, (mine, theirs) in enumerate(zip(whole, resumed, strict=True)):
        for used, again in _streams(mine, theirs, start, updates):
            seen = True
            for step, samples in sorted(again.items()):
                before = used.get(step + start)
                if rank in differs or before is None or before == samples:
                    continue
                same = [s for s, one in used.items() if one == samples]
                again_of = f"those of update {same[0] + 1}" if same else "others"
                how = f"draws other samples: {again_of} of the run that went on"
                differs[rank] = step + start, how
    for rank, (mine, theirs) in enumerate(zip(whole, resumed, strict=True)):
        if end := _end(mine, theirs, start):
            differs.setdefault(rank, end)
    if not seen and not differs:
        why = "no loader gave training batches"
        return None, (NotCompared(what="the samples after the resume", why=why),)
    if not differs:
        return None, ()
    lines = [
        [f"update {differs[rank][0] + 1} {differs[rank][1]}"] if rank in differs else []
        for rank in range(len(whole))
    ]
    facts = _by_ranks(lines)
    summary = (
        f"after the resume {len(differs)} of {len(whole)} ranks draw other samples "
        "than the run that went on"
    )
    by_loader = any(isinstance(e, Loader) for e in whole[0])
    fix = _BY_LOADER if by_loader else _BY_HAND
    return _made(ORDER, "data", summary, facts, fix), ()


def _end(
    whole: Sequence[Any], resumed: Sequence[Any], start: int
) -> tuple[int, str] | None:
    """Returns the update that only one of the runs makes, and how."""
    known = {one.step: one.ended for one in moments(whole)}
    for one in moments(resumed):
        step = one.step + start
        if step in known and known[step] != one.ended:
            if one.ended:
                return step, "is missing: the resumed run has ended before it"
            return step, "is one more than the run that went on makes"
    return None


Used = dict[int, tuple[Any, ...]]  # the samples of each update


def _streams(
    whole: Sequence[Any], resumed: Sequence[Any], start: int, updates: int
) -> Iterator[tuple[Used, Used]]:
    """Yields the samples of each training loader: of one run, and of the resumed one.

    The resumed run may draw before its first update what it skips: what it draws last
    counts. Of a loader that draws ahead, the end of a pass is unknown where updates use
    several batches that do not divide the pass: it is left out.
    """
    steps, again = range(start, start + updates), range(updates)
    draw_ahead = any(_per_update(one)[1] for one in _loaders(whole))
    ours = [one for one in _loaders(whole) if _trains(one, steps, draw_ahead)]
    theirs = [one for one in _loaders(resumed) if _trains(one, again, draw_ahead)]
    passes = [e.batches for e in (*whole, *resumed) if isinstance(e, Passed)]
    for mine, its in zip(ours, theirs, strict=False):
        size, ahead = _per_update(mine)
        if ahead and any(batches % size for batches in passes):
            continue
        used = _used(mine, size, ahead)
        if ahead:
            # As many batches wait for their update as in the other run.
            waiting = sum(1 for e in mine if e.step <= start) - (start + 1) * size
            first = sum(1 for e in its if e.step == 0)
            found = _used(its[max(0, first - size - waiting) :], size, ahead)
        else:
            found = _used(its, size, ahead)
            mine_last, its_last = used.get(start, ()), found.get(0, ())
            least = min(len(mine_last), len(its_last))
            used[start] = mine_last[len(mine_last) - least :]
            found[0] = its_last[len(its_last) - least :]
        yield used, {s: one for s, one in found.items() if s < updates}


def _loaders(events: Sequence[Any]) -> list[list[Drawn]]:
    found: dict[int, list[Drawn]] = {}
    for event in events:
        if isinstance(event, Drawn):
            found.setdefault(event.loader, []).append(event)
    return [found[loader] for loader in sorted(found)]


def _trains(drawn: Sequence[Drawn], steps: Sequence[int], draw_ahead: bool) -> bool:  # noqa: FBT001
    """Returns whether updates draw from a loader.

    All of these do, or, if loaders draw ahead, all but those at the end of a pass. One
    that evaluates is drawn from between two updates as a whole.
    """
    without = len(set(steps) - {one.step for one in drawn})
    return bool(steps) and (2 * without <= len(steps) if draw_ahead else not without)


def _per_update(drawn: Sequence[Drawn]) -> tuple[int, int]:
    """Returns how many batches an update uses, and how many are drawn ahead of it."""
    first, second = (sum(1 for e in drawn if e.step == step) for step in (0, 1))
    return second, max(0, first - second) if second else 0


def _used(drawn: Sequence[Drawn], size: int, ahead: int) -> Used:
    """Returns the samples of each update; if drawn ahead, of `size` batches each."""
    found: Used = {}
    if not ahead:
        for one in drawn:
            found[one.step] = (*found.get(one.step, ()), *one.samples)
        return found
    for step in range(len(drawn) // size):
        part = drawn[step * size : (step + 1) * size]
        found[step] = tuple(sample for one in part for sample in one.samples)
    return found


# State.


def _state(
    whole: Sequence[Sequence[Any]],
    pairs: Sequence[Sequence[Pair]],
    other_samples: bool,  # noqa: FBT001
) -> Finding | None:
    """Returns the finding on what is trained, or kept for it, and not restored."""
    lost = [
        _lost(every, other_samples) + _lost_averages(moments(mine), every)
        for mine, every in zip(whole, pairs, strict=True)
    ]
    facts = _by_ranks(lost)
    if not facts:
        return None
    summary = "the resumed run does not begin with the state that the run had there"
    fix = (
        "save and load all of it: model.state_dict(), optimizer.state_dict(), "
        "scheduler.state_dict(), scaler.state_dict() and averages of the weights, on "
        "every rank"
    )
    return _made(STATE, "update", summary, facts, fix)


def _by_ranks(lines: Sequence[Sequence[str]]) -> list[str]:
    """Returns the lines of all ranks, each once, with the ranks that have it."""
    ranks: dict[str, list[str]] = {}
    for rank, own in enumerate(lines):
        for line in own:
            ranks.setdefault(line, []).append(str(rank))
    return [
        f"all ranks: {line}"
        if len(which) == len(lines)
        else f"rank {', '.join(which)}: {line}"
        for line, which in ranks.items()
    ]


def _lost(pairs: Sequence[Pair], other_samples: bool) -> list[str]:  # noqa: FBT001
    """Returns what one rank has not restored, in sentences."""
    if not pairs:
        return []
    before, after = pairs[0]
    lines = _lines("weights", before.weights, after.weights)
    if not other_samples:  # a forward has written into them
        lines += _lines("buffers", *_judged(before, after))
    lines += _lines("numbers of the optimizer", before.state, after.state)
    lines += _lines("numbers of gradient scalers", before.scalers, after.scalers)
    lines += next(filter(None, (_numbers(*pair) for pair in pairs)), [])
    return lines


def _lost_averages(whole: Sequence[Moment], pairs: Sequence[Pair]) -> list[str]:
    """Returns which averages of the weights one rank has not restored.

    A copy of the weights as they once were is none: it may be of the best epoch so far.
    """
    if not pairs:
        return []
    before, after = pairs[0]
    copies = {values for one in whole for values in one.weights.values()}
    both = [n for n in before.averages if n in after.averages]
    own = [n for n in both if before.averages[n] not in copies]
    return _lines(
        "averages of weights",
        {name: before.averages[name] for name in own},
        {name: after.averages[name] for name in own},
    )


def _judged(before: Moment, after: Moment) -> tuple[Elements, Elements]:
    """Returns the buffers of both; counters alone where forwards had other noise."""
    alike = not _apart(before.gradients, after.gradients)
    counts = {n for n, values in before.buffers.items() if len(values) == 1}
    return (
        {n: v for n, v in before.buffers.items() if alike or n in counts},
        {n: v for n, v in after.buffers.items() if alike or n in counts},
    )


def _lines(what: str, before: Elements, after: Elements) -> list[str]:
    apart = _apart(before, after)
    if not apart:
        return []
    missing = [n for n in apart if n not in after]
    every = len(before.keys() | after.keys())
    if len(missing) == len(apart):
        return [f"{len(apart)} of {every} {what} are missing: {names(apart)}"]
    worst = max((_far(before.get(n), after.get(n)), n) for n in apart)
    size = f"relative difference up to {number(worst[0])}" * math.isfinite(worst[0])
    return [
        ", ".join(filter(None, (f"{len(apart)} of {every} {what} differ", size)))
        + f": {names(apart)}"
    ]


def _numbers(before: Moment, after: Moment) -> list[str]:
    """Returns how the numbers of the optimizers' groups differ: the learning rate."""
    found: dict[str, None] = {}
    for mine, theirs in zip(before.groups, after.groups, strict=False):
        for one, other in zip(mine, theirs, strict=False):
            for name in one.keys() & other.keys():
                if _far((one[name],), (other[name],)) > RTOL:
                    text = (
                        f"{name} of update {before.step + 1} is {number(other[name])}"
                    )
                    found[f"{text}, in the run that went on {number(one[name])}"] = None
    return sorted(found)


def _apart(before: Elements, after: Elements) -> list[str]:
    """Returns the names whose values differ; zeros that are missing are the same."""
    every = dict.fromkeys((*before, *after))
    return [n for n in every if _far(before.get(n), after.get(n)) > RTOL]


def _far(one: Sequence[float] | None, other: Sequence[float] | None) -> float:
    """Returns the largest difference, relative to the largest value."""
    if one is None or other is None:
        return math.inf if any(one or other or ()) else 0.0
    if len(one) != len(other):
        return math.inf
    scale = max((abs(v) for v in (*one, *other) if math.isfinite(v)), default=0.0)
    gaps = (abs(a - b) for a, b in zip(one, other, strict=True) if a != b)
    largest = max((gap for gap in gaps if not math.isnan(gap)), default=0.0)
    return largest / scale if scale else 0.0


def _distance(one: Elements, other: Elements) -> float:
    return sum(min(_far(v, other.get(n)), 1.0) for n, v in one.items())


def _count(pair: Pair) -> tuple[int, int]:
    before, after = pair
    both = (
        (before.weights, after.weights),
        (before.state, after.state),
        (before.scalers, after.scalers),
    )
    every = sum(len(a.keys() | b.keys()) for a, b in both)
    return every, sum(len(_apart(a, b)) for a, b in both)


# What is left.


def _random(pairs: Sequence[Sequence[Pair]]) -> Finding | None:
    """Returns the finding on an update that differs where all else is equal."""
    for rank, every in enumerate(pairs):
        for before, after in every:
            apart = _apart(before.gradients, after.gradients)
            moved = _apart(before.weights, after.weights)
            if not apart and not moved:
                continue
            fact = (
                f"rank {rank}: {'weights' if moved else 'gradients'} of update "
                f"{before.step + 1} differ: {names(moved or apart)}"
            )
            if not moved and before.random != after.random:
                return _made(
                    RANDOM,
                    "forward",
                    "after the resume random numbers are others: the same samples and "
                    "weights give other gradients",
                    [fact, f"rank {rank}: the generators are in another state"],
                    "save and load torch.get_rng_state() and the states of numpy, "
                    "random and CUDA, on every rank",
                )
            return _unknown(fact, is_of_gradients=not moved)
    return None


def _unknown(fact: str, *, is_of_gradients: bool) -> Finding:
    """Returns the finding where something differs that a Moment does not have."""
    if is_of_gradients:
        return _made(
            "unknown",
            "forward",
            "the cause is unknown; samples, weights and the optimizer's state are "
            "restored, and gradients differ",
            [fact],
            "save and load what else gradients depend on: an average of the weights, a "
            "teacher, a queue, a coefficient",
        )
    return _made(
        "unknown",
        "update",
        "the cause is unknown; samples, weights and the optimizer's state are "
        "restored, and an update differs",
        [fact],
        "save and load what else the training keeps: the gradient scaler",
    )
