"""Gradients come from torch.autograd.grad."""

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
        by_hand=True,
    )
