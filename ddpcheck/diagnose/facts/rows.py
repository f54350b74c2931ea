"""The data link: are the ranks' samples those of the single-process run, once each?

Known if the target may choose its samples: then it runs once more, and each training
call of the model records a number for every sample (see run/observe/samples.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import reduce
from operator import add

from ddpcheck.diagnose.facts import faults
from ddpcheck.diagnose.facts.case import Case
from ddpcheck.report.data import Evidence
from ddpcheck.run.spec import RowsSeen, RunOutcome

Rows = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """The samples of one moment, by their numbers, in order.

    `one` has those of the single-process run, `ranks` those of each rank: of one update
    if each update has its own call, else of all calls of a step. `step` counts from 0.
    """

    step: int
    one: Rows
    ranks: tuple[Rows, ...]

    @property
    def together(self) -> Counter[int]:
        """The samples of all ranks."""
        return reduce(add, map(Counter, self.ranks))

    @property
    def repeated(self) -> Counter[int]:
        """Samples that the ranks together have more often than the single-process run.

        Those that it does not have at all: more often than once.
        """
        once = {n: max(count, 1) for n, count in Counter(self.one).items()}
        return +Counter(
            {n: count - once.get(n, 1) for n, count in self.together.items()}
        )

    @property
    def missing(self) -> Counter[int]:
        """Samples of the single-process run that no rank has."""
        return Counter(self.one) - self.together

    @property
    def foreign(self) -> Counter[int]:
        """Samples of ranks that the single-process run does not have."""
        return Counter(
            {n: c for n, c in self.together.items() if n not in set(self.one)}
        )

    @property
    def is_sound(self) -> bool:
        """Whether the shards make up the batch, but for what all ranks have in full."""
        one, ranks = Counter(self.one), [Counter(rank) for rank in self.ranks]
        common = Counter(self._in_one_place()) & one
        rest = reduce(add, (rank - common for rank in ranks))
        return self.is_parted or rest == one - common

    @property
    def is_parted(self) -> bool:
        """Whether the ranks have each of the reference's samples once, and no other."""
        return self.together == Counter(self.one)

    def _in_one_place(self) -> Iterator[int]:
        """Yields what stands in the same place on all ranks, from either end.

        A sample that ends one shard and begins another stands in two.
        """
        size = min(map(len, self.ranks))
        same = {i for i in range(size) if len({r[i] for r in self.ranks}) == 1}
        yield from (self.ranks[0][i] for i in same)
        for i in range(1, size + 1):
            is_new = len(self.ranks[0]) - i not in same
            if is_new and len({r[-i] for r in self.ranks}) == 1:
                yield self.ranks[0][-i]

    @property
    def shared(self) -> set[int]:
        """Samples on several ranks, more often than the single-process run has them."""
        return {n for n in self.repeated if sum(n in rank for rank in self.ranks) > 1}


def moments(case: Case) -> list[Moment]:
    """Returns what was trained on, moment by moment, as far as all ranks came.

    Empty where it is not known: no step of the target's own, samples that cannot be
    read.
    """
    if case.watched is None:
        return []
    return list(_moments(case.watched, case.facts["updates"]))


def first_padded(case: Case) -> Moment | None:
    """Returns the first wrong step if repeats fill the shards in it, else None."""
    wrong = first_wrong(case)
    if wrong is None or case.watched is None:
        return None
    whole = (m for m in _moments(case.watched, 0) if m.step == wrong.step)
    return next((m for m in whole if is_padded(m)), None)


def first_dropped(case: Case) -> Moment | None:
    """Returns the first moment at which the ranks leave the last few samples out."""
    for moment in moments(case):
        if is_padded(moment) or not moment.is_sound:
            return moment if is_dropped(moment) else None
    return None


def _moments(watched: RunOutcome, updates: int) -> Iterator[Moment]:
    """Yields them: one per call where each step has as many calls as `updates`."""
    seats = range(len(watched.ranks))
    done = min(len(watched.steps(rank)) for rank in seats)
    one = _of_one(watched)[:done]
    ranks = [_by_step(watched, rank, len(one)) for rank in seats]
    for step, calls in enumerate(one):
        theirs = [rank[step] for rank in ranks]
        if not calls or not all(theirs) or not all(map(all, (calls, *theirs))):
            return
        every = [calls, *theirs]
        if {updates} != set(map(len, every)):
            every = [[_joined(some)] for some in every]
        for mine, *others in zip(*every, strict=True):
            yield _of_one_batch(Moment(step=step, one=mine, ranks=tuple(others)))


def _of_one_batch(moment: Moment) -> Moment:
    """Returns the moment with one copy of a batch that each rank has drawn as a whole.

    The single-process run of a script gets what all ranks draw. Ranks that draw the
    same batch and cut it by hand train on a part each: together on one copy.
    """
    ranks, copies = len(moment.ranks), Counter(moment.one)
    if moment.is_parted or any(count % ranks for count in copies.values()):
        return moment
    once = {n: count // ranks for n, count in copies.items()}
    seen = Counter[int]()
    kept = list[int]()
    for n in moment.one:
        seen[n] += 1
        if seen[n] <= once[n]:
            kept.append(n)
    return replace(moment, one=tuple(kept))


def first_wrong(case: Case) -> Moment | None:
    """Returns the first moment at which the data link breaks, None where it holds.

    Samples that the single-process run never has are made on the way (noise, mixed or
    trimmed ones, outputs of another network): nothing is known of those.
    """
    # A repeat that fills up may be on all ranks, too.
    wrong = (m for m in moments(case) if is_padded(m) or not m.is_sound)
    return next((m for m in wrong if has_a_part(m) or not foreign(case, m)), None)


def overlap(case: Case, moment: Moment) -> bool:
    """Returns whether ranks share samples, for sure: none may be one with noise."""
    return bool(moment.shared) and not foreign(case, moment)


def is_padded(moment: Moment) -> bool:
    """Returns whether the ranks have all samples, and repeats that fill the shards.

    Those come last on a rank; they are what an epoch, or the shard, begins with, or the
    last sample of all.
    """
    extra = sum(moment.repeated.values())
    same_size = len(set(map(len, moment.ranks))) == 1
    if not extra or not same_size or moment.missing or moment.foreign:
        return False
    is_once = max(Counter(moment.one).values()) == 1  # else one process repeats, too
    filling = min(extra, len(moment.ranks[0]) // 2)
    return is_once and (
        _repeats_the_last(moment)
        or all(_fills(n, moment.ranks, filling) for n in moment.repeated)
    )


def is_dropped(moment: Moment) -> bool:
    """Returns whether all ranks have as many samples, and fewer than W are on none."""
    size = len(moment.one) // len(moment.ranks)
    lost = len(moment.one) - size * len(moment.ranks)
    return (
        size > 0
        and {size} == set(map(len, moment.ranks))
        and 0 < sum(moment.missing.values()) == lost
        and not (moment.repeated or moment.foreign)
    )


def _repeats_the_last(moment: Moment) -> bool:
    """Returns whether only the reference's last sample is repeated, at ends."""
    last = moment.one[-1]
    ends = [rank[-rank.count(last) :] for rank in moment.ranks if last in rank]
    return set(moment.repeated) == {last} and all(set(end) == {last} for end in ends)


def _fills(number: int, ranks: tuple[Rows, ...], filling: int) -> bool:
    """Returns whether a sample is among a rank's last, and comes on an earlier rank.

    Or earlier on the same, where it is there twice. A window that reaches into the next
    shard repeats what a later rank begins with.
    """
    first = [r for r, rows in enumerate(ranks) if number in rows[:-filling]]
    last = [r for r, rows in enumerate(ranks) if number in rows[-filling:]]
    return any(
        a < b or (a == b and ranks[a].count(number) > 1) for a in first for b in last
    )


def earlier(case: Case, moment: Moment) -> Moment | None:
    """Returns the moment whose samples the ranks have again, None without one.

    In a step with samples of several kinds, all wrong ones may be of one kind: the
    labelled ones are right, those without labels are repeated.
    """
    before = [m for m in moments(case) if m.step < moment.step]
    again = moment.together
    found = next((m for m in before if m.together == again), None)
    if found is None and (again := moment.foreign):
        found = next((m for m in before if m.together & again == again), None)
    return found


def are_equal(moment: Moment) -> bool:
    """Returns whether all ranks have the same samples."""
    return len({tuple(sorted(rank)) for rank in moment.ranks}) == 1


def has_a_part(moment: Moment) -> bool:
    """Returns whether a rank has only single-process samples, and another has not.

    Samples that a step makes from noise or by mixing are in no single-process run.
    """
    own = [set(rank) <= set(moment.one) for rank in moment.ranks]
    return any(own) and not all(own)


def foreign(case: Case, moment: Moment) -> bool:
    """Returns whether ranks have samples that the single-process run has in no step."""
    steps = _of_one(case.watched) if case.watched else []
    known = {n for calls in steps for rows in calls for n in rows}
    return not known.issuperset(moment.together)


def evidence(moment: Moment) -> Evidence:
    """Returns the samples of a moment, counted, for the report's data."""
    return {
        "step": moment.step,
        "one_process": len(moment.one),
        "ranks": [len(rank) for rank in moment.ranks],
        "repeated": sum(moment.repeated.values()),
        "missing": sum(moment.missing.values()),
        "foreign": sum(moment.foreign.values()),
    }


def are_used_up(case: Case, step: int) -> bool:
    """Returns whether the ranks that left a step early had no samples left.

    They had used all of their shard once; a step on its own data uses what there is.
    """
    watched = case.watched
    one = _of_one(watched) if watched else []
    if watched is None or len(one) <= step:
        return False
    calls = [_by_step(watched, r, step + 1)[step] for r in range(len(watched.ranks))]
    begun = faults.backwards_in(watched, step)
    most = max(map(len, calls), default=0)
    if not all(map(all, calls)):
        return False
    given = case.facts["batch_size"]
    # Several passes over the given batch have the same number of samples each.
    own_data = watched.reference.facts["loads"] or len(_joined(one[step])) % given
    for mine, backwards, size in zip(calls, begun, case.run.shard_sizes, strict=True):
        seen = len(_joined(mine))
        if seen > size and not own_data:
            return False  # a further pass is no further batch
        if len(mine) == most:
            continue
        if not mine or len(mine) != backwards:
            return False  # a forward without its backward, or none at all
        if seen < size and not own_data:
            return False
    return any(len(mine) < most for mine in calls)


def calls_of_ranks(case: Case, step: int) -> list[int]:
    """Returns how many calls each rank made in a step."""
    assert case.watched is not None
    ranks = range(len(case.watched.ranks))
    return [len(_by_step(case.watched, rank, step + 1)[step]) for rank in ranks]


def _of_one(watched: RunOutcome) -> list[list[Rows]]:
    found: list[list[Rows]] = watched.reference.facts.get("rows") or []
    return found


def _by_step(watched: RunOutcome, rank: int, steps: int) -> list[list[Rows]]:
    found: list[list[Rows]] = [[] for _ in range(steps)]
    for told in watched.ranks[rank].progress:
        if isinstance(told, RowsSeen) and told.step < steps:
            found[told.step].append(told.rows)
    return found


def _joined(calls: list[Rows]) -> Rows:
    return tuple(n for rows in calls for n in rows)
