"""Detects ddp/autograd-grad."""

from __future__ import annotations

import dataclasses

from ddpcheck.diagnose.facts.case import Case, Proposal
from ddpcheck.diagnose.facts.events import asks_before_backward, has_later_backward
from ddpcheck.diagnose.facts.text import names
from ddpcheck.diagnose.facts.unused import unused_parameters
from ddpcheck.run.intervention import Switch

SLUG = "ddp/autograd-grad"
LINK = "reduce"


def detect(case: Case) -> Proposal | None:
    """Proposes it if the target calls autograd.grad and gradients stay local."""
    events = [f.get("events", "") for f in case.ranks]
    if not events:
        return None
    if "G" not in events[0]:
        return _detect_penalty(case)
    calls = (
        f"calls of torch.autograd.grad for parameters: {events[0].count('G')}, of "
        f"backward: {events[0].count('B')}"
    )
    if not case.reduce_is_broken:
        weighs = not case.loss_is_sound and (  # loss/batch-coupled
            case.has_cuts or asks_before_backward(events[0])
        )
        return None if weighs else _detect_other_uses(calls)
    found = _by_hand(
        "gradients come from torch.autograd.grad, which does not run the hooks "
        "that DDP uses to reduce gradients",
        f"{calls}; the ranks' gradients differ",
    )
    if not has_later_backward(case):
        return found
    # Averaging by hand would mend the second backward, too.
    return dataclasses.replace(found, by_hand=False, speculative=True)


def _detect_penalty(case: Case) -> Proposal | None:
    """Proposes it if a backward through the slope of an output leaves out parameters."""
    slopes = max((f.get("slopes", 0) for f in case.ranks), default=0)
    left_out = unused_parameters(case).everywhere
    if not slopes or not left_out or not case.reduce_is_broken:
        return None
    if has_later_backward(case):
        return None
    return _by_hand(
        "a backward through torch.autograd.grad leaves out parameters, and DDP "
        "waits for their gradients",
        f"calls of torch.autograd.grad for an input: {slopes}; a backward through them "
        f"leaves out {names(left_out)}",
        "loss = loss + 0 * sum(p.sum() for p in model.parameters())\n",
    )


def _by_hand(summary: str, fact: str, *added: str) -> Proposal:
    """Returns the proposal; `added` is code that comes before backward."""
    return Proposal(
        summary=summary,
        facts=(fact,),
        fix="use backward(); for a gradient penalty add 0 * the sum of all parameters",
        code="".join(added) + "loss.backward()",
        code_rests_on=(
            "the ranks' calls of torch.autograd.grad, and the parameters "
            "that these leave out"
        ),
        fixes=(Switch.AVERAGED_AUTOGRAD_GRAD,),
        by_hand=True,
        # What the calls return cannot be averaged where they run under torch.vmap.
    )


def _detect_other_uses(calls: str) -> Proposal:
    """Proposes it for other uses of these gradients; a run with their mean confirms it.

    Examples are a step towards higher loss (SAM), an influence, a learning rate: the
    optimizer's gradients come from backward, and DDP reduces those.
    """
    return Proposal(
        summary="the step uses gradients from torch.autograd.grad, which are those "
        "of the local shard: DDP reduces only the gradients of backward",
        facts=(f"{calls}; DDP reduces the gradients of backward correctly",),
        fix="use backward() for these gradients too, or average them over ranks",
        code="grads = torch.autograd.grad(loss, parameters)\n"
        "for grad in grads:\n"
        "    dist.all_reduce(grad)\n"
        "    grad /= dist.get_world_size()",
        fixes=(Switch.AVERAGED_AUTOGRAD_GRAD,),
        speculative=True,
    )
