"""Detects ddp/step-before-reduce."""

from __future__ import annotations

from ddpcheck.diagnose.facts.case import Case, Proposal
from ddpcheck.diagnose.proposal import replaced
from ddpcheck.run.intervention import Switch

SLUG = "ddp/step-before-reduce"
LINK = "reduce"


def detect(case: Case) -> Proposal | None:
    """Proposes it if hooks get gradients before DDP has reduced them."""
    if case.run.ranks_agree:
        return None
    if any(f.get("updates_in_backward") for f in case.ranks):
        return _proposal(
            "the optimizer steps inside the backward, before DDP has reduced the "
            "gradient it uses",
            "weights were written while backward was running; the ranks' weights differ",
        )
    return _detect_local_copies(case)


def _detect_local_copies(case: Case) -> Proposal | None:
    """Proposes it as speculative for a hook that keeps gradients for the update."""
    step, first = case.first_broken("weights"), case.first_broken("gradients")
    hooks = max((f.get("late_hooks", 0) for f in case.ranks), default=0)
    if not hooks or step is None or (first is not None and first <= step):
        return None
    found = _proposal(
        "a hook takes each gradient before DDP has reduced it, and the update uses "
        "these local gradients",
        f"gradients are right up to step {step + 1}, and after its update the "
        f"ranks' weights differ; post-accumulate hooks: {hooks}",
    )
    return replaced(
        found,
        code="",
        speculative=True,
    )


def _proposal(summary: str, fact: str) -> Proposal:
    return Proposal(
        summary=summary,
        facts=(fact,),
        fix="step after backward, or register the step as a DDP communication hook",
        code="loss.backward()\noptimizer.step()",
        fixes=(Switch.HOOKS_AFTER_BACKWARD,),
    )
