"""Reentrant checkpoints fire DDP's hooks inside a nested backward.

What it means
A backward runs inside the backward, and DDP's hooks fire early or twice.

Why it happens
torch.utils.checkpoint with use_reentrant=True calls backward for its segment in its
own backward. What DDP saw of the graph in forward does not hold these parameters.

How it was found
backward was called from inside another backward. The run with use_reentrant=False
decides; where it mends nothing, as with reversible layers, whose backward is their
own, the run with static_graph=True.

Example
    import torch
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel as DDP
    from torch.utils.checkpoint import checkpoint
    torch.manual_seed(0)
    class Net(nn.ModuleDict):
        def forward(self, x):
            x = x.clone().requires_grad_()
            return self["head"](checkpoint(self["body"], x, use_reentrant=True))
    model = Net({"body": nn.Linear(4, 8), "head": nn.Linear(8, 3)})
    batch = torch.randn(8, 4), torch.arange(8) % 3
    loss = nn.CrossEntropyLoss()
    def wrap(model):
        return DDP(model, find_unused_parameters=True)

Fix
use_reentrant=False. The example is mended by:

    class Safe(Net):
        def forward(self, x):
            return self["head"](checkpoint(self["body"], x, use_reentrant=False))
    model = Safe(model)

Not this rule if
The same error without nested backwards: graph/shared-parameter.

References
https://github.com/huggingface/transformers/pull/4659
https://github.com/pytorch/pytorch/issues/24005
"""

from __future__ import annotations

from ddpcheck.diagnose.facts.case import Case, Proposal
from ddpcheck.diagnose.facts.text import times
from ddpcheck.diagnose.proposal import replaced

SLUG = "graph/reentrant-checkpoint"
LINK = "reduce"


def detect(case: Case) -> Proposal | None:
    """Proposes it where a step has nested backwards."""
    if not case.reduce_is_broken or not any(case.rank_facts("nested_backwards", 0)):
        return None
    count = max(case.rank_facts("nested_backwards", 0))
    found = Proposal(
        slug=SLUG,
        link=LINK,
        summary="reentrant checkpointing runs a backward inside the backward, and DDP's "
        "hooks fire early or twice",
        facts=(f"backward was called {times(count)} from inside another backward",),
        fix="use_reentrant=False",
        code="checkpoint(layer, x, use_reentrant=False)",
        fixes=("checkpoint.nonreentrant",),
    )
    # A backward of the model's own, as of reversible layers, is no checkpoint.
    static = replaced(
        found,
        summary="a backward runs inside the backward, and DDP's hooks fire early or "
        "twice",
        fix="static_graph=True, where every step uses the same parameters equally often",
        code="DistributedDataParallel(model, static_graph=True)",
        fixes=("ddp.static_on",),
    )
    return replaced(found, fallback=static)
