"""A rank's process ends where one process does not.

What it means
The process of a rank ends in the middle of training, by a signal or by itself.

Why it happens
SIGSEGV: native code reads what is not there. SIGABRT: native code gave up. SIGKILL:
often the kernel, out of memory. An exit code: the code called os._exit, or a library
did. The other ranks lose their connection to it.

How it was found
One process trained on the global batch; the process of a rank ended, and no other rule
names the cause. The facts have what every rank did last: its frame, its collective,
its output. No fix is run: the death is the finding, why it dies is not known.

Example
    import os
    import torch
    import torch.distributed as dist
    from torch import nn
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    batch = torch.randn(8, 4), torch.arange(8) % 3
    def loss(output, target):
        if dist.is_initialized() and dist.get_rank() == 1:
            os._exit(7)
        return nn.functional.cross_entropy(output, target)

Fix
Find what ends it where the facts say it was. The example is mended by:

    def loss(output, target):
        return nn.functional.cross_entropy(output, target)

Not this rule if
gloo aborts a rank whose collective met another one: sync/collective-mismatch.

References
https://docs.python.org/3/library/faulthandler.html
"""

from __future__ import annotations

from ddpcheck.diagnose.facts import rank_fault
from ddpcheck.diagnose.facts.case import Case, Proposal
from ddpcheck.diagnose.facts.rank_table import named

SLUG = "sync/rank-died"
LINK = "reduce"  # the others wait there


def detect(case: Case) -> Proposal | None:
    """Proposes it where the first thing to go wrong is a death."""
    fault = rank_fault.of(case, "died")
    if fault is None:
        return None
    return rank_fault.proposal(
        case,
        fault,
        slug=SLUG,
        link=LINK,
        summary=f"{named(fault.ranks)} {fault.first.summary}{fault.where}; one process "
        "does not",
        fix=_fix(fault.first.summary),
    )


def _fix(summary: str) -> str:
    if "SIGKILL" in summary:
        return (
            "see whether the kernel ended it for want of memory: dmesg, or a smaller W"
        )
    return "find what ends the process of a rank alone; its own output may say why"
