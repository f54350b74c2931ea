"""What the search goes by: which fix says more, and what several say together."""

from __future__ import annotations

import math

from ddpcheck.diagnose.facts.case import Proposal

_SAME = 1e-6  # of what two fixes leave


def as_good(
    proposals: list[Proposal], first: Proposal, tested: dict[str, float], before: float
) -> Proposal:
    """Returns the first firm proposal, or one on trial before it that does as much.

    Of several causes none mends the run alone; of two fixes of one link that leave the
    same the narrower one comes first.
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
    """Returns whether a fix leaves what a run is off by as it was."""
    return math.isclose(excess, before, rel_tol=_SAME)
