"""The optimizer steps inside the backward.

What it means
Weights are updated inside backward, with the local gradient.

Why it happens
A post-accumulate hook runs as soon as the parameter's own gradient is there; DDP
reduces the bucket later. .grad is right afterwards, the weights are not.

How it was found
The weights of wrapped parameters were written while backward ran, and differ
between ranks. Or gradients are right at the optimizer's step and its update parts the
ranks, in a program with hooks that take each gradient when it is made. The run in which
these hooks wait until backward, and DDP, are done decides.

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

from ddpcheck.diagnose.facts.case import Case, Proposal
from ddpcheck.diagnose.proposal import replaced

SLUG = "ddp/step-before-reduce"
LINK = "reduce"


def detect(case: Case) -> Proposal | None:
    """Proposes it where hooks see gradients before DDP has reduced them."""
    if case.run.ranks_agree:
        return None
    if any(case.rank_facts("updates_in_backward", False)):
        return _of(
            "the optimizer steps inside the backward, before DDP has reduced the "
            "gradient it uses",
            "weights were written while backward was running; the ranks' weights differ",
        )
    return _of_a_copy(case)


def _of_a_copy(case: Case) -> Proposal | None:
    """Proposes it on trial for a hook that keeps gradients for the update."""
    step, first = case.first_broken("weights"), case.first_broken("gradients")
    hooks = max(case.rank_facts("late_hooks", 0), default=0)
    if not hooks or step is None or (first is not None and first <= step):
        return None
    found = _of(
        "a hook takes each gradient when it is made, before DDP has reduced it, and the "
        "update is made of what it took",
        f"gradients are right up to step {step + 1}, after whose update the ranks' weights "
        f"differ; post-accumulate hooks: {hooks}",
    )
    return replaced(
        found,
        code="",
        speculative=True,
    )


def _of(summary: str, fact: str) -> Proposal:
    return Proposal(
        slug=SLUG,
        link=LINK,
        summary=summary,
        facts=(fact,),
        fix="step after backward, or register the step as a DDP communication hook",
        code="loss.backward()\noptimizer.step()",
        fixes=("hooks.after_backward",),
        is_attempt=True,
    )
