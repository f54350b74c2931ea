"""Compares fixes: which one is more precise, and what several show together."""

from __future__ import annotations

import math

from ddpcheck.diagnose.facts.case import Proposal

_SAME = 1e-6  # of the excess that two fixes leave


def tie_break(
    proposals: list[Proposal], first: Proposal, tested: dict[str, float], before: float
) -> Proposal:
    """Returns the first firm proposal, or an earlier one on trial that is as good.

    With several causes no fix is enough; of two fixes of one link that leave the same
    excess, the narrower one comes first.
    """
    left = tested.get(first.slug, math.inf)
    for p in proposals[: proposals.index(first)]:
        same = p.link == first.link and math.isclose(
            tested.get(p.slug, math.inf), left, rel_tol=_SAME
        )
        if same and not changes_nothing(left, before):
            return p
    return first


def changes_nothing(excess: float, before: float) -> bool:
    """Returns whether a fix leaves a run's excess unchanged."""
    return math.isclose(excess, before, rel_tol=_SAME)
