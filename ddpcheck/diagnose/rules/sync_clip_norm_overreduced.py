"""Detects sync/clip-norm-overreduced."""

from __future__ import annotations

import math

from ddpcheck.diagnose.facts.case import Case, Proposal
from ddpcheck.diagnose.facts.events import common_factor, sums_in_its_step, with_factor
from ddpcheck.diagnose.facts.loss import is_sound_until_backward
from ddpcheck.diagnose.facts.text import names, number
from ddpcheck.diagnose.proposal import replaced
from ddpcheck.run.intervention import SkipAllReduces

SLUG = "sync/clip-norm-overreduced"
LINK = "update"
_SEVERAL = 2  # parameters: for one, the factor may be a coincidence


def detect(case: Case) -> Proposal | None:
    """Proposes it if all final gradients have the factor 1 / sqrt(W)."""
    if not case.forward_is_sound or case.world_size == 1:
        return None
    # If clipped by hand, the outputs show the factor as well.
    if not case.loss_is_sound and not is_sound_until_backward(case):
        return None
    factor = common_factor(case)
    if factor is None:
        return _detect_some_parameters(case) or _detect_in_update(case)
    if abs(factor * math.sqrt(case.world_size) - 1) > case.close:
        return None
    return _proposal(
        "outputs and the loss are right; at the optimizer's step every gradient is "
        f"{number(factor)} times the single-process one, which is 1 / "
        f"sqrt({case.world_size})",
    )


def _detect_some_parameters(case: Case) -> Proposal | None:
    """Proposes it as speculative if some gradients, as of one of two nets, have the factor."""
    factor = 1 / math.sqrt(case.world_size)
    found = with_factor(case, factor)
    if len(found) < _SEVERAL or not any(f.get("collectives") for f in case.ranks):
        return None
    told = _proposal(
        f"at the optimizer's step the gradients of {names(found)} are "
        f"{number(factor)} times the single-process ones, which is 1 / "
        f"sqrt({case.world_size})"
    )
    return replaced(told, speculative=True)


def _detect_in_update(case: Case) -> Proposal | None:
    """Proposes it as speculative for an optimizer that clips in its own step."""
    step, calls = case.first_broken("weights"), sums_in_its_step(case)
    if step is None or not calls:
        return None
    found = _proposal(
        f"gradients are right up to step {step + 1}, whose update differs from the "
        "single-process update and is the same on all ranks; collectives that the "
        f"program calls: {calls}",
    )
    return replaced(
        found,
        summary="the optimizer's step sums norms of gradients over ranks, but DDP "
        "has already averaged the gradients: the norms are sqrt(W) times too large",
        speculative=True,
    )


def _proposal(fact: str) -> Proposal:
    return Proposal(
        summary="gradients are clipped by a norm that is summed over ranks, but "
        "DDP has already averaged the gradients: the norm is sqrt(W) times too "
        "large",
        facts=(fact,),
        fix="use the local norm: after DDP all ranks have the same gradients",
        code="torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)",
        fixes=(SkipAllReduces(),),
    )
