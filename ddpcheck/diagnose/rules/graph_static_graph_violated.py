"""static_graph=True on a graph that is not static.

What it means
The graph changes from step to step, though DDP was told that it does not.

Why it happens
static_graph=True records in the first iteration which parameters get a gradient,
and how often. Later steps that differ are right at first, local next, and raise in
the end.

How it was found
DDP was built with static_graph=True, and gradients are not the mean of the local
ones. DDP built anew without it decides.

Example
    import torch
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel as DDP
    torch.manual_seed(0)
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.head, self.aux, self.step = nn.Linear(4, 3), nn.Linear(4, 3), 0
        def forward(self, x):
            self.step += 1
            return self.head(x) + (self.aux(x) if self.step == 1 else 0)
    model, batch = Net(), (torch.randn(8, 4), torch.arange(8) % 3)
    def wrap(model):
        return DDP(model, static_graph=True)
    loss = nn.CrossEntropyLoss()

Fix
Leave static_graph off where the graph changes. The example is mended by:

    def wrap(model):
        return DDP(model, find_unused_parameters=True)

Not this rule if
no_sync is used too: sync/static-graph-no-sync. DDP finds no tensors in the output:
graph/opaque-output.

References
https://github.com/Lightning-AI/pytorch-lightning/issues/18086
https://github.com/Lightning-AI/pytorch-lightning/pull/21251
"""

from __future__ import annotations

from ddpcheck.diagnose.facts.case import Case, Proposal

SLUG = "graph/static-graph-violated"
LINK = "reduce"


def detect(case: Case) -> Proposal | None:
    """Proposes it where static_graph is set and building without it mends."""
    if not case.reduce_is_broken or not any(case.rank_facts("static_graph", False)):
        return None
    return Proposal(
        slug=SLUG,
        link=LINK,
        summary="static_graph=True, but the graph is not the same in every step, or not "
        "every parameter takes part",
        facts=("DDP was built with static_graph=True",),
        fix="drop static_graph, or add 0 * the unused output to the loss",
        code="DistributedDataParallel(model, find_unused_parameters=True)",
        fixes=("ddp.static_off", "ddp.find_unused"),
    )
