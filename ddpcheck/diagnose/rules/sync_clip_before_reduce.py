"""Gradients are clipped before they are reduced."""

from __future__ import annotations

from ddpcheck.diagnose.case import Case, Proposal
from ddpcheck.diagnose.text import names

SLUG = "sync/clip-before-reduce"
LINK = "update"


def detect(case: Case) -> Proposal | None:
    """Proposes it for tensor hooks on parameters, or a clipping that backward follows."""
    if case.diverging() or (case.has_cuts and not case.loss_is_sound):
        return None
    hooked: list[str] = next((h for h in case.rank_facts("hooked", []) if h), [])
    clips = max(case.rank_facts("early_clips", 0), default=0)
    if not hooked and not clips:
        return None
    facts = ["outputs and the loss's gradient at them are right"]
    fixes = []
    if hooked:
        facts.append(f"tensor hooks see the local gradient of {names(hooked)}")
        fixes.append("target.unhook")
    if clips:
        facts.append(f"{clips} clippings by norm came before a backward of their step")
        fixes.append("target.clip_last")
    return Proposal(
        slug=SLUG,
        link=LINK,
        summary="gradients are clipped or changed before DDP has averaged them: the mean "
        "of clipped gradients is not the clipped mean",
        facts=tuple(facts),
        fix="clip once, after the last backward and before the optimizer's step",
        code="loss.backward()\n"
        "torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)\n"
        "optimizer.step()",
        safe=False,
        fixes=tuple(fixes),
    )
