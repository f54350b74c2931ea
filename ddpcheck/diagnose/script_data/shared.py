"""Samples that ranks share while none has drawn one of its own again.

For streams without an end that is seen: it is not known which samples one pass has.
Ranks that draw at random, each for itself, share some by chance, but then they draw
their own again as often: of two equal draws at random, both are on one rank in one case
of WORLD_SIZE. Ranks that begin at other places of the same data share them, too, after
all ranks together have drawn all: these are of another pass.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import combinations

Keys = Sequence[Hashable]  # what the samples of a rank are known by, in order

_RARE = 10**6  # a chance of one in so many is none
_DISTINCT = 4  # samples that are the same on all ranks
# Of all samples that are known: after as many draws of all ranks, a pass may be over.
_OF_PASS = 0.75


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """What ranks share of their first samples.

    `size`: on each rank, none of them twice. `samples`: that are on more than one.
    `lag`: by how many draws most of them are apart, None where that is no one number.
    """

    size: int
    samples: int
    lag: int | None


def shared(ranks: Sequence[Keys]) -> Shared | None:
    """Returns what ranks share beyond chance, None where they do not."""
    size = min(map(_distinct, ranks))
    known = len({key for keys in ranks for key in keys})
    places = [{key: i for i, key in enumerate(keys[:size])} for keys in ranks]
    lags = Counter[int]()
    found = set[Hashable]()
    for one, two in combinations(places, 2):
        for key in one.keys() & two.keys():
            lag = abs(one[key] - two[key])
            if len(ranks) * lag < _OF_PASS * known:
                lags[lag] += 1
                found.add(key)
    world = len(ranks)
    if lags.total() * math.log(world / (world - 1)) < math.log(_RARE):
        return None
    lag, count = lags.most_common(1)[0]
    is_one = 2 * count > lags.total()
    return Shared(size=size, samples=len(found), lag=lag if is_one else None)


def first_alike(ranks: Sequence[Keys]) -> int:
    """Returns how many first samples all ranks share, in the same order.

    0 where that can be chance, as often as ranks draw their own samples again.
    """
    alike = 0
    for each in zip(*ranks, strict=False):
        if len(set(each)) > 1:
            break
        alike += 1
    pairs = sum(math.comb(len(keys), 2) for keys in ranks)
    again = sum(math.comb(n, 2) for keys in ranks for n in Counter(keys).values())
    is_chance = alike * math.log(max(1, pairs) / (again + 1)) < math.log(_RARE)
    is_constant = len(set(ranks[0][:alike])) < _DISTINCT
    return 0 if is_chance or is_constant else alike


def _distinct(keys: Keys) -> int:
    """Returns how many samples a rank draws before one comes again."""
    seen = set[Hashable]()
    for key in keys:
        if key in seen:
            break
        seen.add(key)
    return len(seen)
