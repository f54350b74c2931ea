"""Fixes that multiply the loss, or gradients, by a factor."""

from __future__ import annotations

import math
import re

from ddpcheck.diagnose.fixed.draft import Draft, Facts
from ddpcheck.diagnose.fixed.kinds.family import Wanted, at_each_ddp, listed
from ddpcheck.run.intervention import Intervention, Scale, ScaleGradients, ScaleLoss

_CLOSE = 0.01  # of powers
_MOST_POWER = 2


def add(fix: Intervention, wanted: Wanted, draft: Draft) -> bool:
    """Adds a factor."""
    if not isinstance(fix, ScaleLoss | ScaleGradients):
        return False
    scale(draft, wanted, fix)
    return True


def scale(draft: Draft, wanted: Wanted, fix: ScaleLoss | ScaleGradients) -> None:
    """Multiplies the loss by a factor, or the gradients where a step has its own.

    Those of DDP when it reduces them, others with the loss of each backward.
    """
    facts, (factor, why) = wanted.facts, factor_of(fix, wanted.world_size)
    is_early = not fix.listed and _is_for_ddp(facts) == bool(wanted.attempt)
    if not facts.has_train_step and (is_early or isinstance(fix, ScaleLoss)):
        draft.after_loss += f"# {why}\nvalue = value {factor}\n"
        return
    if is_early:
        draft.imports.add("from unittest import mock")
        why = _TOO_SMALL if factor.startswith("* dist.") else why
        draft.parts["scaled"] = _BEFORE_BACKWARD.format(why=why)
        draft.around.append(f"scaled({number_of(factor)})")
        return
    draft.imports.add(
        "from torch.distributed.algorithms.ddp_comm_hooks.default_hooks "
        "import allreduce_hook"
    )
    names, state = fix.listed, "None"
    changed = f"    bucket.buffer().mul_({number_of(factor)})\n"
    if names:
        changed, state = _OF_CHOSEN.format(factor=number_of(factor)), "chosen"
        draft.before_wrap += (
            f"names = {listed(names)}\n"
            "chosen = {id(p) for n, p in model.named_parameters() if n in names}\n"
        )
    draft.parts["scaled"] = _SCALED.format(why=why, changed=changed)
    draft.after_wrap += at_each_ddp(facts, _HOOKED.format(state=state))


_SCALED = """\
def scaled(chosen, bucket):
    # {why}
{changed}    return allreduce_hook(None, bucket)  # the mean over ranks, as of DDP
"""
_OF_CHOSEN = """\
    pairs = zip(bucket.parameters(), bucket.gradients())
    for gradient in (g for p, g in pairs if id(p) in chosen):
        gradient.mul_({factor})
"""
_HOOKED = "ddp.register_comm_hook({state}, scaled)\n"


_BEFORE_BACKWARD = """\
def scaled(factor):
    # {why}
    backward = torch.Tensor.backward

    def run(loss, *args, **kwargs):
        backward(loss * factor, *args, **kwargs)

    return mock.patch.object(torch.Tensor, "backward", run)
"""
_TOO_SMALL = "The gradients are divided by W once too often."
_BUILDS = re.compile(r"\b(DDP|DistributedDataParallel)\(")


def _is_for_ddp(facts: Facts) -> bool:
    """Returns whether DDP reduces the gradients, and has no hook that does so yet."""
    has_ddp = not facts.has_wrap or bool(_BUILDS.search(facts.source))
    return has_ddp and "register_comm_hook(" not in facts.source


def factor_of(fix: Scale, world_size: int) -> tuple[str, str]:
    """Returns a factor as "* W" or the like, and the comment that explains it."""
    world = "dist.get_world_size()"
    power = math.log(fix.factor) / math.log(world_size) if fix.factor > 0 else 0.0
    whole = round(power)
    if not whole or abs(power - whole) > _CLOSE or abs(whole) > _MOST_POWER:
        return f"* {fix.factor:.17g}", "The ranks' gradients lack this factor."
    sign = "*" if whole > 0 else "/"
    if abs(whole) == _MOST_POWER:
        world += "**2"
    why = "DDP divides the sum over ranks by W; here the sum itself is right."
    if whole < 0:
        why = "The gradients already have the factor W."
    return f"{sign} {world}", why


def number_of(factor: str) -> str:
    """Returns the factor of `factor_of` as a number."""
    return factor[2:] if factor.startswith("*") else f"1 {factor}"
