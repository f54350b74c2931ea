"""A parameter never gets a gradient.

What it means
A parameter never gets a gradient, and its bucket is never reduced.

Why it happens
DDP waits for all parameters of a bucket. One that no module uses keeps it open:
local gradients in the first step, an error in the second.

How it was found
Trainable parameters have no gradient on any rank, and no output of the model depends
on them. DDP built anew with find_unused_parameters=True decides.

Example
    import torch
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel as DDP
    torch.manual_seed(0)
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.head, self.pooler = nn.Linear(4, 3), nn.Linear(4, 4)
        def forward(self, x):
            return self.head(x)
    model, batch = Net(), (torch.randn(8, 4), torch.arange(8) % 3)
    wrap = DDP
    loss = nn.CrossEntropyLoss()

Fix
Tell DDP to look for unused parameters, or remove them. The example is mended by:

    def wrap(model):
        return DDP(model, find_unused_parameters=True)

Not this rule if
find_unused_parameters=True is set already, or the model's output depends on them:
graph/output-unused.

References
https://github.com/pytorch/pytorch/issues/8160
https://github.com/pytorch/pytorch/issues/61470
"""

from __future__ import annotations

from ddpcheck.diagnose.case import Case, Proposal
from ddpcheck.diagnose.text import names
from ddpcheck.diagnose.unused import unused_parameters

SLUG = "graph/unused-parameter"
LINK = "reduce"


def detect(case: Case) -> Proposal | None:
    """Proposes it for parameters that no output of the model depends on."""
    if not case.reduce_is_broken or any(case.rank_facts("find_unused", False)):
        return None
    unused = unused_parameters(case)
    if not unused.everywhere or unused.in_output:
        return None
    return Proposal(
        slug=SLUG,
        link=LINK,
        summary="parameters that never get a gradient keep their bucket open: the first step's "
        "gradients stay local, the second step raises",
        facts=(
            f"{len(unused.everywhere)} trainable parameters get no gradient on any rank: "
            f"{names(unused.everywhere)}",
            *unused.fault,
        ),
        fix="find_unused_parameters=True, or remove the parameters",
        code="DistributedDataParallel(model, find_unused_parameters=True)",
        fixes=("ddp.find_unused",),
    )
