"""Digests of tensors, as `summing.digest` makes them, against each other."""

from __future__ import annotations

from collections.abc import Sequence


def is_same(digests: Sequence[tuple[float, ...] | None], rtol: float) -> bool:
    """Returns whether digests are equal; None is "equal to the reference"."""
    told = [d for d in digests if d is not None]
    if not told:
        return True
    if len(told) < len(digests):
        # Within tolerance of the reference on one rank and not on another: only a
        # difference at the threshold itself could still be agreement.
        return False
    first = told[0]
    for other in told[1:]:
        if len(other) != len(first):
            return False
        for start in range(0, len(first), 3):
            bound = 8 * rtol * max(first[start + 2], other[start + 2])
            for a, b in zip(
                first[start : start + 2], other[start : start + 2], strict=True
            ):
                if not abs(a - b) <= bound:
                    return False
    return True
