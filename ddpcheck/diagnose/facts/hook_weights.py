"""How a communication hook weights the ranks' gradients, from sketches of both."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from ddpcheck.diagnose.facts.case import Case

_UNEQUAL = 1e-3  # of two weights
_NOTHING = 1e-6  # relative, of what the others leave of a vector


def unequal(case: Case) -> tuple[int, list[float]] | None:
    """Returns (call, weight of each rank) of the first call of unequal weights.

    None if the hook returns the mean of the ranks' buckets, or no combination of them.
    """
    told = [f.get("hook_sketches", []) for f in case.ranks]
    for call, ranks in enumerate(zip(*told, strict=False)):
        befores, afters, sizes = zip(*ranks, strict=True)
        if not all(afters) or len(set(sizes)) > 1 or sizes[0] <= len(ranks):
            continue
        weights = combination(befores, afters[0])
        if weights is not None and max(weights) - min(weights) > _UNEQUAL:
            return call, weights
    return None


def combination(
    vectors: Sequence[Sequence[float]], result: Sequence[float]
) -> list[float] | None:
    """Returns the factors c with result = sum_r c_r vectors_r.

    None where there are none, or many: the vectors are combinations of each other.
    By modified Gram-Schmidt (Golub and Van Loan, Matrix Computations, 5.2.8).

    >>> combination([(1.0, 0.0, 0.0), (1.0, 2.0, 0.0)], (3.0, 4.0, 0.0))
    [1.0, 2.0]
    >>> combination([(1.0, 0.0, 0.0), (1.0, 2.0, 0.0)], (3.0, 4.0, 1.0))
    >>> combination([(1.0, 2.0), (2.0, 4.0)], (3.0, 6.0))
    """
    if not all(map(math.isfinite, itertools.chain(result, *vectors))):
        return None
    basis: list[list[float]] = []
    upper: list[list[float]] = []  # row r: what is taken of basis vectors 0 to r
    for vector in vectors:
        taken, left = _taken(vector, basis)
        size = math.hypot(*left)
        if size <= _NOTHING * math.hypot(*vector):
            return None
        upper.append([*taken, size])
        basis.append([value / size for value in left])
    taken, left = _taken(result, basis)
    if math.hypot(*left) > _NOTHING * math.hypot(*result):
        return None
    factors: list[float] = []  # of the last vectors, the very last first
    for r in reversed(range(len(vectors))):
        later = zip(reversed(upper[r + 1 :]), factors, strict=True)
        rest = taken[r] - sum(row[r] * factor for row, factor in later)
        factors.append(rest / upper[r][r])
    return factors[::-1]


def _taken(
    vector: Sequence[float], basis: list[list[float]]
) -> tuple[list[float], list[float]]:
    """Returns (how much of each basis vector is in the vector, what is left)."""
    left, taken = list(vector), []
    for unit in basis:
        taken.append(sum(map(float.__mul__, left, unit)))
        left = [a - taken[-1] * b for a, b in zip(left, unit, strict=True)]
    return taken, left
