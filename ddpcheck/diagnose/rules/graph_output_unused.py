"""An output that the loss does not use.

What it means
The forward computes an output that the loss does not use.

Why it happens
The parameters behind it get no gradient, so their bucket is never complete: local
gradients in the first step, an error in the second forward.

How it was found
An output of DDP depends on parameters that a backward leaves without gradient on
every rank. DDP built anew with find_unused_parameters=True decides.

Example
    import torch
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel as DDP
    torch.manual_seed(0)
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.head, self.aux = nn.Linear(4, 3), nn.Linear(4, 3)
        def forward(self, x):
            return self.head(x), self.aux(x)
    model, batch = Net(), (torch.randn(8, 4), torch.arange(8) % 3)
    wrap = DDP
    def loss(output, target):
        return nn.functional.cross_entropy(output[0], target)

Fix
Return only what the loss uses, or add it with a factor of 0. The example is mended
by:

    def loss(output, target):
        return nn.functional.cross_entropy(output[0], target) + 0 * output[1].sum()

Not this rule if
No output depends on them: graph/unused-parameter.

References
https://github.com/pytorch/pytorch/issues/22436
https://github.com/pytorch/pytorch/pull/57081
"""

from __future__ import annotations

from ddpcheck.diagnose.facts.case import Case, Proposal
from ddpcheck.diagnose.facts.text import names
from ddpcheck.diagnose.facts.unused import unused_parameters

SLUG = "graph/output-unused"
LINK = "reduce"


def detect(case: Case) -> Proposal | None:
    """Proposes it for parameters behind an output that get no gradient."""
    if not case.reduce_is_broken:
        return None
    unused = unused_parameters(case)
    if not unused.everywhere or not unused.in_output:
        return None
    return Proposal(
        slug=SLUG,
        link=LINK,
        summary="part of the model's output does not reach the loss, so the parameters behind it "
        "get no gradient and their bucket stays open",
        facts=(
            "trainable parameters without gradient from a backward, on every rank: "
            f"{len(unused.everywhere)}, {names(unused.everywhere)}",
            *unused.fault,
        ),
        fix="return only what the loss uses, or find_unused_parameters=True",
        code="DistributedDataParallel(model, find_unused_parameters=True)",
        fixes=("ddp.find_unused",),
    )
