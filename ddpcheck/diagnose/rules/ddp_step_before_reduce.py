"""The optimizer steps inside the backward."""

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
