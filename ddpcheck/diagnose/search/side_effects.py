"""Side effects of a fix: buffers that were right without it.

A step that gets the samples of all ranks, and counts or stores what the ranks exchange,
does so once for each rank. Then these buffers differ because of the fix.
"""

from __future__ import annotations

import dataclasses

from ddpcheck.diagnose.facts.case import Case, Proposal
from ddpcheck.diagnose.proposal import replaced
from ddpcheck.diagnose.search.causes import Cause


def is_one(first: Case, case: Case, taken: list[Proposal], found: Proposal) -> bool:
    """Returns whether the finding is about buffers that only the fix made wrong.

    Args:
        first: the run as it is.
        case: the run with what is taken up in force.
        taken: the proposals that are taken up.
        found: what mends the rest.
    """
    wrong, before = case.first_broken("buffers"), first.first_broken("buffers")
    return (
        any(p.is_wide for p in taken)
        and all(fix.place == "state" for fix in found.fixes)
        and wrong is not None
        and (before is None or wrong < before)
    )


def joined(cause: Cause, besides: Cause) -> Cause:
    """Returns the cause with a fix that also restores the buffers it made wrong."""
    fixes = (*cause.proposal.fixes, *besides.proposal.fixes)
    return dataclasses.replace(
        cause,
        proposal=replaced(cause.proposal, fixes=fixes),
        after=besides.after,
        verified=besides.verified,
    )
