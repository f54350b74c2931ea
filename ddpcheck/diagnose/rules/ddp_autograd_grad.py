"""Gradients come from torch.autograd.grad.

What it means
The gradients that the optimizer uses were never reduced.

Why it happens
torch.autograd.grad and backward(inputs=...) return gradients without running the
hooks of the leaves, where DDP's reducer sits.

How it was found
The step calls autograd.grad (torch's own calls are not counted), DDP's gradients
are not the mean of the local ones, and averaging by hand makes the run equal.

Example
    import torch
    from torch import nn
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    batch = torch.randn(8, 4), torch.arange(8) % 3
    def train_step(model, optimizer, batch):
        parameters = list(model.parameters())
        value = nn.functional.cross_entropy(model(batch[0]), batch[1])
        for p, grad in zip(parameters, torch.autograd.grad(value, parameters)):
            p.grad = grad
        optimizer.step()

Fix
Call backward: only that runs DDP's hooks. The example is mended by:

    def train_step(model, optimizer, batch):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(batch[0]), batch[1]).backward()
        optimizer.step()

Not this rule if
autograd.grad makes a penalty that a later backward() differentiates, and every
parameter gets its gradient there.

References
https://github.com/pytorch/pytorch/issues/47562
https://github.com/pytorch/pytorch/issues/63740
"""

from __future__ import annotations

from ddpcheck.diagnose.case import Case, Proposal

SLUG = "ddp/autograd-grad"
LINK = "reduce"


def detect(case: Case) -> Proposal | None:
    """Proposes it where the target calls autograd.grad and gradients stay local."""
    events = case.rank_facts("events", "")
    if not case.reduce_is_broken or not events or "G" not in events[0]:
        return None
    return Proposal(
        slug=SLUG,
        link=LINK,
        summary="gradients are made by torch.autograd.grad, which runs none of the hooks "
        "that DDP reduces by",
        facts=(
            f"calls of torch.autograd.grad: {events[0].count('G')}, of backward: "
            f"{events[0].count('B')}; the ranks' gradients differ",
        ),
        fix="use backward(); for a gradient penalty add 0 * the sum of all parameters",
        code="loss = loss + 0 * sum(p.sum() for p in model.parameters())\nloss.backward()",
        fixes=("autograd.averaged",),
        by_hand=True,
    )
