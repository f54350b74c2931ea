"""DDP finds no tensors in the output.

What it means
DDP cannot see what the forward returned.

Why it happens
DDP walks the output with torch's pytree to find where backward begins. An object of
a class of its own is a leaf without a tensor: with static_graph nothing is ever
reduced, with find_unused_parameters everything counts as unused.

How it was found
torch's pytree finds no tensor in the output of a DDP forward, and gradients are not
the mean of the local ones. The run in which DDP sees the object's tensors in a
tuple decides.

Example
    import torch
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel as DDP
    torch.manual_seed(0)
    class Box:
        def __init__(self, logits):
            self.logits = logits
    class Net(nn.Linear):
        def forward(self, x):
            return Box(super().forward(x))
    model, batch = Net(4, 3), (torch.randn(8, 4), torch.arange(8) % 3)
    def wrap(model):
        return DDP(model, static_graph=True)
    def loss(output, target):
        return nn.functional.cross_entropy(output.logits, target)

Fix
Return tensors, tuples or dicts, or register a pytree node. The example is mended
by:

    class Net(nn.Linear):
        def forward(self, x):
            return {"logits": super().forward(x)}
    model = Net(4, 3)
    def loss(output, target):
        return nn.functional.cross_entropy(output["logits"], target)

Not this rule if
A dataclass without static_graph: its tensors are found by other means, and the run
is equal.

References
https://github.com/pytorch/pytorch/issues/124666
https://github.com/pytorch/pytorch/pull/93125
"""

from __future__ import annotations

from ddpcheck.diagnose.facts.case import Case, Proposal

SLUG = "graph/opaque-output"
LINK = "reduce"


def detect(case: Case) -> Proposal | None:
    """Proposes it where DDP sees fewer tensors in the output than there are."""
    if not case.reduce_is_broken or not any(case.rank_facts("opaque_output", False)):
        return None
    kind = next(k for k in case.rank_facts("opaque_output", "") if k)
    return Proposal(
        slug=SLUG,
        link=LINK,
        summary="the model returns an object in which DDP finds no tensors, so it does not "
        "know what to wait for",
        facts=(f"the output is a {kind}; torch's pytree finds no tensor in it",),
        fix="return tensors, tuples or dicts, or register the class as a pytree node",
        code='return {"logits": logits}',
        fixes=("ddp.plain_output",),
        # Tensors that an object computes later cannot be handed through DDP.
        or_by_hand=True,
    )
