"""Parameters were unfrozen after wrapping.

What it means
Parameters that DDP left out are trained.

Why it happens
DDP takes the parameters with requires_grad True when it is built. One that is
unfrozen later has no hook, and trains on its rank alone.

How it was found
A trained parameter had requires_grad False when DDP was built. DDP built anew
decides, or averaging by hand where the step unfreezes later.

Example
    import torch
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel as DDP
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    batch = torch.randn(8, 4), torch.arange(8) % 3
    loss = nn.CrossEntropyLoss()
    def wrap(model):
        model[0].requires_grad_(False)
        wrapped = DDP(model)
        model[0].requires_grad_(True)
        return wrapped

Fix
Unfreeze before wrapping, or wrap again. The example is mended by:

    def wrap(model):
        return DDP(model.requires_grad_(True))

Not this rule if
It was unfrozen before wrapping, and DDP was built after that.

References
https://github.com/facebookresearch/detectron2/issues/2486
https://github.com/JDAI-CV/fast-reid/issues/178
"""

from __future__ import annotations

from ddpcheck.diagnose.facts.case import Case, Proposal
from ddpcheck.diagnose.facts.text import names

SLUG = "ddp/unfrozen-after-wrap"
LINK = "reduce"


def detect(case: Case) -> Proposal | None:
    """Proposes wrapping anew where requires_grad was False when DDP was built."""
    found = case.outcome.facts().get("unfrozen", [])
    if not found or not case.reduce_is_broken:
        return None
    return Proposal(
        slug=SLUG,
        link=LINK,
        summary="parameters were unfrozen after wrapping: DDP left them out when it was "
        "built",
        facts=(
            f"{len(found)} trained parameters had requires_grad=False when DDP was built: "
            f"{names(found)}",
        ),
        fix="unfreeze before wrapping, or wrap again",
        code="module.requires_grad_(True)\nmodel = DistributedDataParallel(module)",
        fixes=("ddp.rewrap_trainable",),
        local=tuple(found),
        # By hand, hooks would go too: another cause may be among them.
        or_by_hand=not any(case.rank_facts("comm_hooks", 0)),
    )
