"""Detects ddp/frozen-after-wrap."""

from __future__ import annotations

from ddpcheck.diagnose.facts.case import Case, Proposal
from ddpcheck.diagnose.facts.text import names
from ddpcheck.run.intervention import Switch

SLUG = "ddp/frozen-after-wrap"
LINK = "reduce"


def detect(case: Case) -> Proposal | None:
    """Proposes wrapping again if requires_grad was True when DDP was built."""
    in_turn = set(case.facts["in_turn"])  # as GANs do
    frozen = case.outcome.facts().get("frozen", [])
    found = [n for n in frozen if n not in in_turn]
    if not frozen or not case.reduce_is_broken:
        return None
    if Switch.REWRAP_TRAINABLE in case.outcome.spec.fixes:
        return None  # the code that froze them
    if all(f.get("find_unused") for f in case.ranks):
        return None  # DDP waits for no unused parameter
    if not found:
        return _detect_frozen_in_turn(frozen)
    return Proposal(
        summary="parameters were frozen after wrapping: their bucket waits for gradients "
        "that never come",
        facts=(_fact(found),),
        fix="freeze before wrapping, or wrap again",
        code="module.requires_grad_(False)\nmodel = DistributedDataParallel(model.module)",
        fixes=(Switch.FIND_UNUSED,),
        # Averaging by hand would also remove hooks: another cause may be among them.
    )


def _detect_frozen_in_turn(frozen: list[str]) -> Proposal:
    """Proposes it as speculative for networks in one DDP object that are trained in turn.

    In separate DDP objects no network waits for another: the cause is another one.
    """
    return Proposal(
        summary="parts of the model are frozen in turn after wrapping: their "
        "buckets, which also hold trained parameters, wait for gradients that "
        "never come",
        facts=(
            _fact(frozen),
            "they are trained in another step, or in another part of the step",
        ),
        fix="wrap each part separately, or set find_unused_parameters=True",
        code="model = DistributedDataParallel(model, find_unused_parameters=True)",
        fixes=(Switch.FIND_UNUSED,),
        speculative=True,
        last_resort=1,
    )


def _fact(found: list[str]) -> str:
    return (
        f"{len(found)} parameters had requires_grad=True when DDP was built and have "
        f"False now: {names(found)}"
    )
