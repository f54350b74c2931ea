"""How a script's loaders are used: which batches are not of the step they come in.

A loader that fetches ahead has drawn the next batch before this one is trained on. And
a script may look at a batch, for its shape, before it begins to train.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import accumulate

from ddpcheck.ranks.messages import Outcome
from ddpcheck.run.script.events import CALLS, Drawn, Passed, Updated


def drawn(rank: Outcome) -> list[Drawn]:
    """Returns the batches that a process drew; calls of the model are none."""
    every = [event for event in rank.progress if isinstance(event, Drawn)]
    return [event for event in every if event.loader != CALLS]


def numbers(rank: Outcome) -> list[int]:
    """Returns how many tensors of random numbers a script drew itself, by step."""
    return [e.numbers for e in rank.progress if isinstance(e, Updated)]


def passes(ranks: Sequence[Outcome]) -> dict[tuple[int, int], int]:
    """Returns how many batches a pass has, by (loader, pass), where it has ended.

    A loader may have more of them than its length says: see Passed.
    """
    found: dict[tuple[int, int], int] = {}
    drawn = Counter[tuple[int, int]]()
    for outcome in ranks:
        for event in outcome.progress:
            if isinstance(event, Passed):
                key = event.loader, event.turn
                found[key] = max(event.batches, found.get(key, 0))
            elif isinstance(event, Drawn):
                key = event.loader, event.turn
                drawn[key] = max(event.number + 1, drawn[key])
    return {key: most for key, most in found.items() if drawn[key] <= most}


def ahead(rank: Outcome) -> Iterator[tuple[int, int, int]]:
    """Yields the loaders that draw ahead: see Known.

    Before the first update such a loader has drawn more than between later ones. Where
    there are steps in which nothing is drawn, each of them uses what was drawn before.
    """
    every = drawn(rank)
    left = {*looks(rank)}
    kept = [e for e in every if (e.loader, e.turn) not in left]
    counts = Counter((event.loader, event.step) for event in kept)
    updates = [event for event in rank.progress if isinstance(event, Updated)]
    empty = _empty(every, len(updates))
    for loader in sorted({event.loader for event in every}):
        own = [counts[loader, step] for step in range(len(updates))]
        used, more = counts[loader, 1], counts[loader, 0] - counts[loader, 1]
        if not used and empty:
            used = _most_used(own)
            more = max(own) - used
        elif not used and len(updates) == 1:
            used = _by_rows([e for e in every if e.loader == loader], updates[0])
            more = own[0] - used
        if used and more > 0:
            yield loader, used, more


def looks(rank: Outcome) -> Iterator[tuple[int, int]]:
    """Yields the passes, by (loader, pass), that a script leaves before its training.

    It begins a pass of the same loader anew before the first update, which has used
    more batches than the second one, so many at least as the passes that were left.
    """
    every = drawn(rank)
    ended = {(e.loader, e.turn) for e in rank.progress if isinstance(e, Passed)}
    last = {(event.loader, event.turn): event.step for event in every}
    for loader in sorted({event.loader for event in every}):
        turns = Counter(e.turn for e in every if e.loader == loader and not e.step)
        second = sum(1 for e in every if e.loader == loader and e.step == 1)
        left = [
            turn
            for turn in turns
            if turn < max(turns)
            and (loader, turn) not in ended
            and not last[loader, turn]
        ]
        more = turns.total() - second
        if second and sum(turns[turn] for turn in left) <= more:
            yield from ((loader, turn) for turn in left)


def usable_steps(ranks: Sequence[Outcome], most: int) -> int:
    """Returns how many steps are known to have batches, at most `most`."""
    if any(ahead(ranks[0])):
        return most
    for rank in ranks:
        empty = _empty(drawn(rank), most)
        most = min([most, *(step for step in empty if step)])
    return most


def _empty(batches: Sequence[Drawn], updates: int) -> list[int]:
    """Returns the steps in which no loader drew a batch."""
    steps = {event.step for event in batches}
    return [step for step in range(updates) if step not in steps]


def _most_used(counts: Sequence[int]) -> int:
    """Returns how many batches each step can have used of what was drawn until then."""
    so_far = accumulate(counts)
    return min(total // (step + 1) for step, total in enumerate(so_far))


def _by_rows(batches: Sequence[Drawn], update: Updated) -> int:
    """Returns how many of a step's batches have the rows that the model was given."""
    sizes = list(accumulate(len(event.samples) for event in batches))
    given = sum(update.rows)
    return sizes.index(given) + 1 if given in sizes else 0
