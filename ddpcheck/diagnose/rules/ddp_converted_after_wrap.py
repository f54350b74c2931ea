"""The model was converted after wrapping.

What it means
The model was converted to another dtype, device or memory format after wrapping.

Why it happens
.to() puts new storage under the parameters: gradient accumulators, on which DDP's
hooks sit, are made anew, or gradients no longer have the layout of DDP's buckets
and are copied in the wrong order.

How it was found
A parameter's dtype, strides or memory are not those that DDP saw when it was built, and
gradients are not the mean of the local ones. Or they were others in between, which
leaves its gradient with another node than the one that DDP's hook is on. DDP built anew
on the model as it is decides, or averaging by hand.

Example
    import torch
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel as DDP
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.Flatten(), nn.Linear(16, 3))
    batch = torch.randn(8, 2, 4, 4), torch.arange(8) % 3
    def wrap(model):
        return DDP(model).to(memory_format=torch.channels_last)
    loss = nn.CrossEntropyLoss()

Fix
Convert first, wrap last. The example is mended by:

    def wrap(model):
        return DDP(model.to(memory_format=torch.channels_last))

Not this rule if
The model was converted before wrapping.

References
https://github.com/pytorch/pytorch/issues/104336
"""

from __future__ import annotations

from ddpcheck.diagnose.facts.case import Case, Proposal
from ddpcheck.diagnose.facts.text import names

SLUG = "ddp/converted-after-wrap"
LINK = "reduce"


def detect(case: Case) -> Proposal | None:
    """Proposes wrapping anew where parameters are not what DDP was built on."""
    facts = case.outcome.facts()
    converted, moved = facts.get("converted", []), facts.get("moved", [])
    if not (converted or moved) or not case.reduce_is_broken:
        return None
    what = "dtype or memory format" if converted else "memory"
    found = converted or moved
    return Proposal(
        slug=SLUG,
        link=LINK,
        summary="the model was converted after wrapping: gradients no longer fit what "
        "DDP made for them, its hooks or the layout of its buckets",
        facts=(
            f"{len(found)} parameters had another {what} when DDP was built: "
            f"{names(found)}",
        ),
        fix="convert first, wrap last",
        code="model = DistributedDataParallel(model.to(dtype))",
        fixes=("ddp.rewrap",),
        or_by_hand=True,
        # There and back again: so do averages of weights that are put in their place.
        speculative=not converted,
    )
