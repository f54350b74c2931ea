"""What ranks did before they raised, died or hung."""

from __future__ import annotations

import re

from ddpcheck.diagnose.case import Case
from ddpcheck.run.spec import BackwardCount, CollectiveCount

_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+) in (?P<name>\S+)')


def busy_ranks(case: Case) -> dict[int, str]:
    """Returns the ranks that hang in code of their own, and where: "file.py:12".

    A rank that waits for others does so inside torch; one that sleeps, loops or waits
    for something else is itself what the others wait for.
    """
    found = {}
    for fault in case.run.faults:
        if fault.kind != "hung":
            continue
        _, _, stack = fault.stack.rpartition("Current thread")
        frame = _FRAME.search(stack)
        if frame and "/torch/" not in frame["file"]:
            found[fault.rank] = f"{frame['file']}:{frame['line']}"
    return found


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
