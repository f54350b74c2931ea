"""Whether a loss is divided by its shard's part of a total: factors are N / n_r."""

from __future__ import annotations

from collections.abc import Sequence


def are_shares(factors: Sequence[float] | None, close: float) -> bool:
    """Returns whether the ranks' factors can be N / n_r: their inverses add up to 1.

    True if they are None: nothing contradicts it.
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
    """Returns whether the per-rank losses, weighted by shares, add up to the whole.

    That is so for quotients S_r / n_r, whatever n_r is, and for sound terms. The
    logarithm of a mean has the same factors and gives another number. True if something
    is unknown.
    """
    if factors is None or whole is None or not all(factors):
        return True
    known = [v for v in losses if v is not None]
    if len(known) < len(factors):
        return True
    made = sum(v / factor for v, factor in zip(known, factors, strict=True))
    return abs(made - whole) <= close * max(1e-12, abs(whole), *map(abs, known))
