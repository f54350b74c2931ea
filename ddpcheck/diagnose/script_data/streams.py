"""From the events of one process to the passes in which it drew training batches.

A pass trains if an update follows its batches. Passes that evaluate, or that only look
at the first batch, are drawn between two updates as a whole, and are left out: so is a
loader that only some ranks have.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ddpcheck.run.script.events import Drawn, Loader, Passed, Updated

Key = Hashable  # an index of a data set, or a digest

_BY_CHANCE = 0.1  # of the indices: so few equal rows are no equal data


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """One pass of a process over a loader.

    `is_whole`: its end was reached. `used`: how many of its batches were drawn before
    the last update that followed. `is_last`: nothing follows the last batch.
    """

    loader: Loader
    drawn: tuple[Drawn, ...]
    is_whole: bool
    used: int
    is_last: bool

    @property
    def samples(self) -> tuple[Any, ...]:
        """All its samples, in order."""
        return tuple(sample for one in self.drawn for sample in one.samples)

    @property
    def rows(self) -> tuple[str, ...]:
        """The digests of its samples, in order; () where one is missing."""
        if any(len(one.rows) != len(one.samples) for one in self.drawn):
            return ()
        return tuple(row for one in self.drawn for row in one.rows)

    @property
    def batch(self) -> int:
        """The size of its largest batch."""
        return max((len(one.samples) for one in self.drawn), default=0)


Stream = Sequence[Pass]  # of one process over one loader, or over one made anew


@dataclass(slots=True)
class _Open:
    """A pass that is being read."""

    loader: Loader
    began: int
    drawn: list[Drawn] = field(default_factory=list)
    has_ended: bool = False
    last: int = -1  # place of its last batch among the events
    used: int = 0
    trains: bool = False
    is_left: bool = False  # another has taken its place

    def close(self, is_last: bool) -> Pass:  # noqa: FBT001
        """Returns the pass as it was."""
        length = self.loader.batches
        is_whole = self.has_ended or (length is not None and len(self.drawn) >= length)
        return Pass(
            loader=self.loader,
            drawn=tuple(self.drawn),
            is_whole=is_whole,
            used=self.used,
            is_last=is_last,
        )


def streams(events: Iterable[Any]) -> list[Stream]:
    """Returns the training passes of a process, by loader in the order of first use.

    A loader that is built anew for every pass counts as one.
    """
    every, size = _read(list(events))
    kinds = {_kind(one.loader) for one in every if _spans(one)}
    trained: dict[int, list[_Open]] = {}
    for one in every:
        # A pass that evaluates may be the last before an update, if a batch was
        # fetched ahead.
        trains = one.trains and (not kinds or _kind(one.loader) in kinds)
        if trains or _spans(one):
            trained.setdefault(one.loader.number, []).append(one)
    merged: list[list[_Open]] = []
    for passes in trained.values():
        before = next((m for m in merged if _continues(m[-1], passes[0])), None)
        if before is None:
            merged.append(passes)
        else:
            before.extend(passes)
    return [[one.close(one.last == size - 1) for one in passes] for passes in merged]


def _spans(one: _Open) -> bool:
    """Returns whether there are updates between its batches."""
    return len({drawn.step for drawn in one.drawn}) > 1


def _read(events: list[Any]) -> tuple[list[_Open], int]:
    current: dict[int, _Open] = {}
    every: list[_Open] = []
    newest: _Open | None = None  # that drew last
    for place, event in enumerate(events):
        if isinstance(event, Loader):
            for one in current.values():
                is_like = _kind(one.loader) == _kind(event)
                one.is_left = one.is_left or (is_like and bool(one.drawn))
            current[event.number] = _Open(event, place)
            every.append(current[event.number])
        elif isinstance(event, Drawn) and event.loader in current:
            newest = current[event.loader]
            newest.drawn.append(event)
            newest.is_left = False
            newest.last = place
        elif isinstance(event, Passed) and event.loader in current:
            current[event.loader].has_ended = True
        elif isinstance(event, Updated):
            if newest is not None:
                newest.trains = True
            for one in current.values():
                one.used = one.used if one.is_left else len(one.drawn)
    return every, len(events)


def _continues(before: _Open, after: _Open) -> bool:
    """Returns whether a loader takes the place of one that is not used any more."""
    one, two = before.loader, after.loader
    return before.last < after.began and _kind(one) == _kind(two)


def _kind(loader: Loader) -> tuple[Any, ...]:
    return (
        loader.batches,
        loader.samples,
        loader.batch_size,
        loader.sampler,
        loader.is_iterable,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Lanes:
    """One loader of the script in all processes.

    `single` is () where the single process has none like it. `by_index`: equal indices
    are equal samples; otherwise samples are known by the digests of their rows, if
    `rows` are known.
    """

    ranks: tuple[Stream, ...]
    single: Stream
    by_index: bool

    def keys(self, one: Pass) -> tuple[Key, ...]:
        """Returns what the samples of a pass are known by; () where nothing is."""
        if one.loader.is_iterable or self.by_index:
            return one.samples
        return one.rows


def lanes(ranks: Sequence[Iterable[Any]], single: Iterable[Any]) -> list[Lanes]:
    """Returns the loaders that all ranks train on."""
    read, alone = [streams(events) for events in ranks], streams(single)
    found = []
    for number, each in enumerate(zip(*read, strict=False)):
        first = each[0][0].loader
        if any(s[0].loader.is_iterable != first.is_iterable for s in each):
            continue
        own = alone[number] if number < len(alone) else ()
        if own and own[0].loader.is_iterable != first.is_iterable:
            own = ()
        every = [*each, own] if own else list(each)
        found.append(Lanes(ranks=each, single=own, by_index=_by_index(every)))
    return found


def _by_index(every: Sequence[Stream]) -> bool:
    """Returns whether equal indices are equal samples in all processes.

    They are not where each rank has its own part of the data. Where the rows of one
    index differ, the data may be other data, or changed at random (then a process
    itself gets other rows for an index in another pass).
    """
    if any(one.loader.is_iterable for stream in every for one in stream):
        return False
    if len({stream[0].loader.samples for stream in every}) > 1:
        return False
    known = [_digests(stream) for stream in every]
    if any(len(digests) > 1 for own in known for digests in own.values()):
        return True
    pairs = [(a, b) for i, a in enumerate(known) for b in known[i + 1 :]]
    for one, two in pairs:
        both = one.keys() & two.keys()
        alike = sum(bool(one[index] & two[index]) for index in both)
        # In other data, a few rows may be in one place by chance.
        if both and alike <= _BY_CHANCE * len(both):
            return False
    return True


def _digests(stream: Stream) -> dict[Key, set[str]]:
    """Returns the digests that each index had."""
    found: dict[Key, set[str]] = {}
    for one in stream:
        for index, row in zip(one.samples, one.rows, strict=False):
            found.setdefault(index, set()).add(row)
    return found
