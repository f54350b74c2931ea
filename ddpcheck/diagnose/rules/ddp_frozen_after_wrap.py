"""Parameters were frozen after wrapping.

What it means
Parameters that DDP waits for no longer get a gradient.

Why it happens
DDP sorts the parameters that require a gradient into buckets when it is built; a
bucket is reduced when all of its parameters are ready. A frozen one never is: the
rest of its bucket stays local, and the next forward raises.

How it was found
A parameter has requires_grad False and had it True when DDP was built. DDP built
anew with find_unused_parameters=True decides, or averaging by hand where the step
freezes again.

Example
    import torch
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel as DDP
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    batch = torch.randn(8, 4), torch.arange(8) % 3
    def train_step(model, optimizer, batch):
        (model.module if isinstance(model, DDP) else model)[0].requires_grad_(False)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(batch[0]), batch[1]).backward()
        optimizer.step()
    def wrap(model):
        return DDP(model)

Fix
Freeze before wrapping, or find_unused_parameters=True. The example is mended by:

    def wrap(model):
        model[0].requires_grad_(False)
        return DDP(model)

Not this rule if
The parameter was frozen before wrapping.

References
https://github.com/facebookresearch/ClassyVision/pull/398
https://github.com/NVIDIA/apex/pull/46
"""

from __future__ import annotations

from ddpcheck.diagnose.case import Case, Proposal
from ddpcheck.diagnose.text import names

SLUG = "ddp/frozen-after-wrap"
LINK = "reduce"


def detect(case: Case) -> Proposal | None:
    """Proposes wrapping anew where requires_grad was True when DDP was built."""
    in_turn = set(case.facts["in_turn"])  # as GANs do
    found = [n for n in case.outcome.facts().get("frozen", []) if n not in in_turn]
    if not found or not case.reduce_is_broken:
        return None
    if "ddp.rewrap_trainable" in case.outcome.spec.fixes:
        return None  # that froze them
    return Proposal(
        slug=SLUG,
        link=LINK,
        summary="parameters were frozen after wrapping: their bucket waits for gradients "
        "that never come",
        facts=(
            f"{len(found)} parameters had requires_grad=True when DDP was built and have "
            f"False now: {names(found)}",
        ),
        fix="freeze before wrapping, or wrap again",
        code="module.requires_grad_(False)\nmodel = DistributedDataParallel(model.module)",
        fixes=("ddp.find_unused",),
        # By hand, hooks would go too: another cause may be among them.
        or_by_hand=not any(case.rank_facts("comm_hooks", 0)),
    )
