"""What ranks did before they raised, died or hung."""

from __future__ import annotations

import re

from ddpcheck.diagnose.case import Case
from ddpcheck.run.spec import BackwardCount, CollectiveCount, StepResult

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


def skips_backward(case: Case) -> bool:
    """Returns whether a rank left a step with fewer backwards than another began in it.

    What collectives it meets later follows from that.
    """
    begun: dict[tuple[int, int], int] = {}  # (rank, step) -> backwards
    left: dict[int, int] = {}  # rank -> steps that it has done
    for rank, outcome in enumerate(case.outcome.ranks):
        for told in outcome.progress:
            if isinstance(told, BackwardCount):
                key = (rank, told.step)
                begun[key] = begun.get(key, 0) + 1
            elif isinstance(told, StepResult):
                left[rank] = told.step + 1
    return any(
        begun.get((rank, step), 0) < count
        for (_, step), count in begun.items()
        for rank in range(len(case.outcome.ranks))
        if left.get(rank, 0) > step
    )


def backwards_of_ranks(case: Case) -> list[int]:
    """Returns how many backwards each rank had begun, empty without a hang or death."""
    if all(f.kind == "raised" for f in case.run.faults):
        return []
    counts = []
    for rank in case.outcome.ranks:
        told = [p.count for p in rank.progress if isinstance(p, BackwardCount)]
        counts.append(max(told, default=0))
    return counts
