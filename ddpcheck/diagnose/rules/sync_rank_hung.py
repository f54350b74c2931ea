"""A rank does not go on where one process does.

What it means
A rank was still at work, or waiting, when the time was over.

Why it happens
A rank that sleeps, loops, or waits for a lock or a file keeps all others waiting in
their next collective. Where every rank waits in one, they wait for each other.

How it was found
One process trained on the global batch in a fraction of the time; ranks did not end
within the deadline, or waited for each other for three seconds in which none of them
did anything, and no other rule names the cause. The facts have what every rank did
last: its frame, its collective, its output. No fix is run: the wait is the
finding, why it waits is not known.

Example
    import time
    import torch
    import torch.distributed as dist
    from torch import nn
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    batch = torch.randn(8, 4), torch.arange(8) % 3
    def loss(output, target):
        if dist.is_initialized() and dist.get_rank() == 1:
            time.sleep(3600)
        return nn.functional.cross_entropy(output, target)

Fix
See what the rank waits for where the facts say it is. If it is only slow, give it
time: --timeout-s. The example is mended by:

    def loss(output, target):
        return nn.functional.cross_entropy(output, target)

Not this rule if
Ranks called different collectives: sync/collective-mismatch. A rank left out a
backward: graph/skipped-backward.

References
https://github.com/pytorch/pytorch/issues/22259
"""

from __future__ import annotations

from ddpcheck.diagnose.facts import faults, rank_fault
from ddpcheck.diagnose.facts.case import Case, Proposal
from ddpcheck.diagnose.facts.rank_table import named

SLUG = "sync/rank-hung"
LINK = "reduce"  # the others wait there


def detect(case: Case) -> Proposal | None:
    """Proposes it where ranks wait, and none raised or died."""
    fault = rank_fault.of(case, "hung")
    if fault is None:
        return None
    who, one = f"{named(fault.ranks)} hangs", "does not wait"
    if len(fault.ranks) == len(case.outcome.ranks):
        who = "every rank waits for the others"
        if set(fault.ranks) <= set(faults.busy_ranks(case.run)):
            who, one = "every rank is at work", "is done"
    return rank_fault.proposal(
        case,
        fault,
        slug=SLUG,
        link=LINK,
        summary=f"{who}{fault.where}; one process {one}",
        fix="see what the rank waits for there; if it is only slow, give it time: "
        "--timeout-s",
    )
