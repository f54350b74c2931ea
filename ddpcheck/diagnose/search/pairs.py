"""With two causes, fix one and diagnose again.

One fix of two does not make the run equal, so a proposal on trial is not taken up, and
evidence may point to another cause than the right one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ddpcheck.diagnose.proposal import Proposal
from ddpcheck.diagnose.registry import RULES
from ddpcheck.diagnose.search.causes import Cause

# Returns what a run proves of the rest with these fixed, None without a proof.
Beside = Callable[[list[Proposal]], Cause | None]

_ORDER = {rule.SLUG: place for place, rule in enumerate(RULES)}
_MOST = 4  # proposals: each is a search of its own


def with_one_first(firm: Iterable[Proposal], beside: Beside) -> list[Cause]:
    """Returns one of these and the causes proven with it, in the order of the chain.

    [] without a pair.
    """
    narrow = [p for p in firm if not p.is_wide and not p.last_resort]
    for proposal in narrow[:_MOST]:
        other = beside([proposal])
        if other is not None:
            pair = [Cause(proposal, after=other.after, verified=True), other]
            return sorted(pair, key=lambda cause: _ORDER[cause.proposal.slug])
    return []
