"""Whether a loss is divided by its shard's part of a total: factors are N / n_r."""

from __future__ import annotations

from collections.abc import Sequence


def are_shares(factors: Sequence[float] | None, close: float) -> bool:
    """Returns whether the ranks' factors can be N / n_r: their inverses make 1.

    True where they are None: nothing speaks against it.
    """
    if factors is None:
        return True
    inverses = sum(1 / factor for factor in factors if factor)
    return abs(inverses - 1) <= close


def make_the_whole(
    factors: Sequence[float] | None,
    losses: Sequence[float | None],
    whole: float | None,
    close: float,
) -> bool:
    """Returns whether the ranks' losses, weighed by their shares, make one process's.

    So do quotients S_r / n_r, whatever n_r is made of, and sound terms beside them. The
    logarithm of a mean has the same factors and makes another number. True where
    something is unknown.
    """
    if factors is None or whole is None or not all(factors):
        return True
    known = [v for v in losses if v is not None]
    if len(known) < len(factors):
        return True
    made = sum(v / factor for v, factor in zip(known, factors, strict=True))
    return abs(made - whole) <= close * max(1e-12, abs(whole), *map(abs, known))
