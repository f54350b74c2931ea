"""What ranks did before they raised, died or hung."""

from __future__ import annotations

from ddpcheck.diagnose.case import Case
from ddpcheck.run.spec import BackwardCount, CollectiveCount


def collectives_of_ranks(case: Case) -> list[int]:
    """Returns how many collectives the target called on each rank.

    Empty without a fault: ranks may differ in harmless ways, e.g. through subgroups.
    """
    if not case.run.faults:
        return []
    counts = []
    for rank in case.outcome.ranks:
        told = [p.count for p in rank.progress if isinstance(p, CollectiveCount)]
        counts.append(max(told, default=0))
    return counts


def backwards_of_ranks(case: Case) -> list[int]:
    """Returns how many backwards each rank had begun, empty without a hang or death."""
    if all(f.kind == "raised" for f in case.run.faults):
        return []
    counts = []
    for rank in case.outcome.ranks:
        told = [p.count for p in rank.progress if isinstance(p, BackwardCount)]
        counts.append(max(told, default=0))
    return counts
