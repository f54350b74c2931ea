"""A data-independent term has the data term's factor.

What it means
A term that does not depend on the data has the data term's factor.

Why it happens
W * (S_r / N + R) averages to S / N + W * R: every rank has the penalty in full, so
it needs no factor.

How it was found
d loss / d output is right on every rank, and what parameters get from the loss
directly, with the network cut off, is one other factor of the reference's, the same
on all ranks. Numbers are equal within 1e-6, or 10 times the tolerance where that is
more. The run with that factor taken out decides.

Example
    import torch
    import torch.distributed as dist
    from torch import nn
    torch.manual_seed(0)
    size = 8  # of the global batch
    model = nn.Linear(4, 3)
    batch = torch.randn(size, 4), torch.arange(size) % 3
    def train_step(model, optimizer, batch):
        x, y = batch
        world_size = dist.get_world_size() if dist.is_initialized() else 1
        data = nn.functional.cross_entropy(model(x), y, reduction="sum") / size
        penalty = sum(p.square().sum() for p in model.parameters())
        optimizer.zero_grad()
        (world_size * (data + penalty)).backward()
        optimizer.step()

Fix
Multiply the data term alone. The example is mended by:

    def train_step(model, optimizer, batch):
        x, y = batch
        world_size = dist.get_world_size() if dist.is_initialized() else 1
        data = nn.functional.cross_entropy(model(x), y, reduction="sum") / size
        penalty = sum(p.square().sum() for p in model.parameters())
        optimizer.zero_grad()
        (world_size * data + penalty).backward()
        optimizer.step()

Not this rule if
d loss / d output is wrong too.

References
https://arxiv.org/abs/1706.02677
"""

from __future__ import annotations

from ddpcheck.diagnose.case import Case, Proposal
from ddpcheck.diagnose.loss import global_loss_fix
from ddpcheck.diagnose.text import listed

SLUG = "loss/regularizer-scale"
LINK = "loss"


def detect(case: Case) -> Proposal | None:
    """Proposes it where the data term is right and parameters' own terms are not."""
    if case.step is None or not case.loss_is_sound or case.world_size == 1:
        return None
    direct = case.direct()
    if not direct or case.direct_is_sound:
        return None
    first = direct[0][0]
    same = all(
        residual <= case.close and abs(ratio - first) <= case.close * abs(first)
        for ratio, residual in direct
    )
    if not same or not first:
        return None
    return Proposal(
        slug=SLUG,
        link=LINK,
        summary="a term of the loss that every rank has in full (a penalty on the "
        "weights) is scaled like the data term",
        facts=(
            "the gradient at the outputs is right on every rank",
            "the gradient that parameters get from the loss directly is "
            f"{listed(ratio for ratio, _ in direct)} times one process's, expected 1",
        ),
        fix="multiply the data term alone by the world size",
        code="loss = dist.get_world_size() * data_term + penalty",
        fixes=(f"direct.scale:{1 / first!r}",),
        evidence={"direct_ratios": [ratio for ratio, _ in direct]},
    )


__all__ = ["LINK", "SLUG", "detect", "global_loss_fix"]
