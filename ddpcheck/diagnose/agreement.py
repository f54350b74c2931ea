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


def first_parting(outcome: RunOutcome, fact: str, rtol: float) -> int | None:
    """Returns the first step within which ranks' weights part, None where none does.

    Args:
        outcome: of a run with gradients averaged by hand, which notes the weights.
        fact: "rewritten_before": from the beginning of a step to its first forward;
            "rewritten_after": from the optimizer's step to the end.
        rtol: of digests that are the same.
    """
    told = [outcome.facts(r).get(fact, {}) for r in range(len(outcome.ranks))]
    for step in sorted(set.intersection(*(set(t) for t in told)) if told else ()):
        first, later = zip(*(t[step] for t in told), strict=True)
        if not digests_differ(first, rtol) and digests_differ(later, rtol):
            return int(step)
    return None


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
