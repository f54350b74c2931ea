"""Whether ranks have the same tensors, told from digests."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from ddpcheck.session import RunOutcome


def ranks_differ(outcome: RunOutcome, quantity: str, step: int, rtol: float) -> bool:
    """Returns whether the ranks' tensors of a quantity differ after a step."""
    told = [
        s.digests.get(quantity)
        for r in range(len(outcome.ranks))
        for s in outcome.steps(r)
        if s.step == step
    ]
    return digests_differ(told, rtol)


def digests_differ(told: Sequence[tuple[float, ...] | None], rtol: float) -> bool:
    """Returns whether two digests are of different tensors; None is no digest."""
    if len(set(told)) == 1:
        return False
    for a, b in itertools.combinations(told, 2):
        if a is None or b is None or len(a) != len(b):
            return True
        bound = 8 * rtol * max(a[2], b[2])
        if abs(a[0] - b[0]) > bound or abs(a[1] - b[1]) > bound:
            return True
    return False
