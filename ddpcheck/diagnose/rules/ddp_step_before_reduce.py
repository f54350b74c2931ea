"""The optimizer steps inside the backward.

What it means
Weights are updated inside backward, with the local gradient.

Why it happens
A post-accumulate hook runs as soon as the parameter's own gradient is there; DDP
reduces the bucket later. .grad is right afterwards, the weights are not.

How it was found
The weights of wrapped parameters were written while backward ran, and differ
between ranks. No run can take the update out of the hook, so the fix is not
verified.

Example
    import torch
    from torch import nn
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    batch = torch.randn(8, 4), torch.arange(8) % 3
    def update(p):
        with torch.no_grad():
            p -= 0.1 * p.grad
    def train_step(model, optimizer, batch):
        optimizer.zero_grad()
        weights = model.parameters()
        hooks = [p.register_post_accumulate_grad_hook(update) for p in weights]
        nn.functional.cross_entropy(model(batch[0]), batch[1]).backward()
        for hook in hooks:
            hook.remove()

Fix
Update after backward. The example is mended by:

    def train_step(model, optimizer, batch):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(batch[0]), batch[1]).backward()
        optimizer.step()

Not this rule if
The update runs after backward, or in DDP's own communication hook.

References
-
"""

from __future__ import annotations

from ddpcheck.diagnose.case import Case, Proposal

SLUG = "ddp/step-before-reduce"
LINK = "reduce"


def detect(case: Case) -> Proposal | None:
    """Proposes it where an optimizer steps while backward runs."""
    if not any(case.rank_facts("updates_in_backward", False)) or case.run.ranks_agree:
        return None
    return Proposal(
        slug=SLUG,
        link=LINK,
        summary="the optimizer steps inside the backward, before DDP has reduced the "
        "gradient it uses",
        facts=(
            "weights were written while backward was running; the ranks' weights differ",
        ),
        fix="step after backward, or register the step as a DDP communication hook",
        code="loss.backward()\noptimizer.step()",
    )
