"""A parameter gets no gradient.

What it means
A parameter gets no gradient, and its bucket is not reduced.

Why it happens
DDP waits for all parameters of a bucket. One that no module uses, or none in this
call, keeps it open: local gradients first, an error in the next forward.

How it was found
A backward leaves trainable parameters without gradient on every rank, and no output
of DDP depends on them. DDP built anew with find_unused_parameters=True decides.

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

from ddpcheck.diagnose.facts.case import Case, Proposal
from ddpcheck.diagnose.facts.text import names
from ddpcheck.diagnose.facts.unused import unused_parameters

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
        summary="parameters that a backward gives no gradient keep their bucket open: it "
        "is not reduced, and DDP's next forward raises",
        facts=(
            "trainable parameters without gradient from a backward, on every rank: "
            f"{len(unused.everywhere)}, {names(unused.everywhere)}",
            *unused.fault,
        ),
        fix="find_unused_parameters=True, or remove the parameters",
        code="DistributedDataParallel(model, find_unused_parameters=True)",
        code_rests_on="parameters without gradient, and DDP does not look for them",
        fixes=("ddp.find_unused",),
    )
