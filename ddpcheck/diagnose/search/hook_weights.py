"""A communication hook that weights the ranks, and the loss that it belongs to.

Ranks whose losses are means over their own counts equal the single-process run if the
hook weights them by these counts. With other weights, only the fix of the loss and DDP
without the hook together make the run equal, and they are one cause: the weights.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence

from ddpcheck.diagnose.facts.case import Case
from ddpcheck.diagnose.facts.text import listed, number
from ddpcheck.diagnose.rules import sync_comm_hook_semantics
from ddpcheck.diagnose.rules.loss_factors import loss_local_normalizer
from ddpcheck.diagnose.search.causes import Cause

_UNEQUAL = 1e-3  # of two weights
_NOTHING = 1e-6  # relative, of what the others leave of a vector

_TOGETHER = {loss_local_normalizer.SLUG, sync_comm_hook_semantics.SLUG}


def as_one(case: Case, causes: list[Cause]) -> list[Cause]:
    """Returns the causes, those of a hook that weights local means as one."""
    parts = [c for c in causes if c.proposal.slug in _TOGETHER]
    if len(parts) != len(_TOGETHER) or (found := unequal(case)) is None:
        return causes
    call, weights = found
    loss, hook = parts
    proposal = dataclasses.replace(
        hook.proposal,
        summary="a communication hook weights the ranks' gradients by other counts "
        "than those that divide their losses",
        facts=(
            *hook.proposal.facts,
            f"its weights in call {call + 1}: {listed(weights)} on the ranks; a "
            f"mean has {number(1 / case.world_size)} for each",
            *loss.proposal.facts,
        ),
        fix="before backward, count what divides the loss of the same step, and "
        "weight by the rank's share of that count",
        code="total = count.clone()  # of this step, all its micro-batches\n"
        "dist.all_reduce(total)\n"
        "dist.all_reduce(bucket.buffer().mul_(count / total))",
        fixes=loss.proposal.fixes + hook.proposal.fixes,
    )
    both = [c.verified for c in parts]
    before = max(c.before for c in parts)
    merged = dataclasses.replace(
        hook, proposal=proposal, before=before, verified=min(both, key=_rank)
    )
    at = causes.index(loss)
    rest = [c for c in causes if c not in parts]
    return [*rest[:at], merged, *rest[at:]]


def _rank(verified: bool | None) -> int:  # noqa: FBT001
    return (False, None, True).index(verified)


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
