"""A kept gradient is a view of DDP's bucket, which the next backward writes over.

What it means
A gradient that the step keeps changes when the next backward runs.

Why it happens
With gradient_as_bucket_view=True p.grad lies in the bucket from the second step on.

How it was found
DDP was built with gradient_as_bucket_view=True, and averaging by hand makes the run
equal. DDP built anew without it decides.

Example
    import torch
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel as DDP
    torch.manual_seed(0)
    model, batch = nn.Linear(4, 3, bias=False), (torch.randn(8, 4), torch.arange(8) % 3)
    def wrap(model):
        return DDP(model, gradient_as_bucket_view=True)
    def train_step(model, optimizer, batch):
        kept, (weight,) = [], model.parameters()
        for x, y in zip(batch[0].chunk(2), batch[1].chunk(2)):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            kept.append(weight.grad)
        weight.grad = sum(kept) / 2
        optimizer.step()

Fix
Clone what is kept, or gradient_as_bucket_view=False. The example is mended by:

    wrap = DDP

Not this rule if
Tied weights or sparse gradients with gradient_as_bucket_view=True, which are equal.

References
https://github.com/facebookresearch/fairscale/issues/354
https://github.com/InfiniTensor/InfiniTrain/pull/183
"""

from __future__ import annotations

from ddpcheck.diagnose.facts.case import Case, Proposal

SLUG = "sync/grad-alias"
LINK = "reduce"


def detect(case: Case) -> Proposal | None:
    """Proposes it for gradient_as_bucket_view where by-hand averaging is right."""
    if not case.reduce_is_broken or not any(case.rank_facts("bucket_view", False)):
        return None
    return Proposal(
        slug=SLUG,
        link=LINK,
        summary="gradients that the step keeps are views of DDP's buckets, and the next "
        "backward writes over them",
        facts=(
            "gradient_as_bucket_view=True: after the first step p.grad is a view of "
            "the bucket",
        ),
        fix="clone what you keep, or gradient_as_bucket_view=False",
        code="kept = [p.grad.clone() for p in model.parameters()]",
        fixes=("ddp.no_bucket_view",),
    )
