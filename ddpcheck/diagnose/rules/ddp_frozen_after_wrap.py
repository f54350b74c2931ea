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
freezes again. Parameters that one process freezes and frees in turn, as GANs do, are
named where nothing else mends the run.

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
The parameter was frozen before wrapping, or DDP looks for unused ones.

References
https://github.com/facebookresearch/ClassyVision/pull/398
https://github.com/NVIDIA/apex/pull/46
"""

from __future__ import annotations

from ddpcheck.diagnose.facts.case import Case, Proposal
from ddpcheck.diagnose.facts.text import names

SLUG = "ddp/frozen-after-wrap"
LINK = "reduce"


def detect(case: Case) -> Proposal | None:
    """Proposes wrapping anew where requires_grad was True when DDP was built."""
    in_turn = set(case.facts["in_turn"])  # as GANs do
    frozen = case.outcome.facts().get("frozen", [])
    found = [n for n in frozen if n not in in_turn]
    if not frozen or not case.reduce_is_broken:
        return None
    if "ddp.rewrap_trainable" in case.outcome.spec.fixes:
        return None  # that froze them
    if all(case.rank_facts("find_unused", False)):
        return None  # nothing waits for them
    if not found:
        return _in_turn(frozen)
    return Proposal(
        slug=SLUG,
        link=LINK,
        summary="parameters were frozen after wrapping: their bucket waits for gradients "
        "that never come",
        facts=(_fact(found),),
        fix="freeze before wrapping, or wrap again",
        code="module.requires_grad_(False)\nmodel = DistributedDataParallel(model.module)",
        fixes=("ddp.find_unused",),
        # By hand, hooks would go too: another cause may be among them.
        or_by_hand=not any(case.rank_facts("comm_hooks", 0)),
    )


def _in_turn(frozen: list[str]) -> Proposal:
    """Proposes it on trial for networks in one DDP object that are trained in turn.

    Each in an object of its own waits for nothing: then something else is wrong.
    """
    return Proposal(
        slug=SLUG,
        link=LINK,
        summary="parts of the model are frozen in turn after wrapping: the buckets that "
        "they share with what is trained wait for gradients that do not come",
        facts=(
            _fact(frozen),
            "in another step, or another part of one, they are trained",
        ),
        fix="wrap each part by itself, or look for unused parameters in each backward",
        code="model = DistributedDataParallel(model, find_unused_parameters=True)",
        fixes=("ddp.find_unused",),
        speculative=True,
        last_resort=1,
    )


def _fact(found: list[str]) -> str:
    return (
        f"{len(found)} parameters had requires_grad=True when DDP was built and have "
        f"False now: {names(found)}"
    )
