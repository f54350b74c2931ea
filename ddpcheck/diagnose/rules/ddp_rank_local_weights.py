"""Detects ddp/rank-local-weights."""

from __future__ import annotations

import dataclasses

from ddpcheck.diagnose.facts.case import Case, Proposal
from ddpcheck.diagnose.facts.events import rewritten
from ddpcheck.diagnose.facts.text import names
from ddpcheck.diagnose.rules import ddp_wrapper_missing
from ddpcheck.run.intervention import Substitute, Switch

SLUG = "ddp/rank-local-weights"
LINK = "reduce"


def detect(case: Case) -> Proposal | None:
    """Proposes a broadcast if ranks do not start from the weights of rank 0."""
    rewriting = _detect_rewritten(case)
    if rewriting is not None:
        return rewriting
    per_rank = [f.get("start_differs", []) for f in case.ranks]
    wrong = [(rank, found) for rank, found in enumerate(per_rank) if found]
    if not wrong or len({f.get("start") for f in case.ranks}) == 1:
        return None
    rank, found = wrong[-1]
    is_outside = set(found) <= set(case.outcome.facts().get("outside", []))
    if is_outside and ddp_wrapper_missing.is_seen(case):
        return None  # it would have given the ranks their weights, too
    why = "something wrote weights after DDP broadcast those of rank 0"
    if is_outside:
        why = "they are in no DDP object, which broadcasts those of rank 0"
    return Proposal(
        summary=f"the ranks start from different weights: {why}",
        facts=(
            f"before the first step rank {rank} differs from the single-process run "
            f"in {len(found)} parameters: {names(found)}",
        ),
        fix="load or initialise before wrapping, or broadcast afterwards",
        code="for p in model.parameters():\n    dist.broadcast(p.data, 0)",
        code_rests_on=""
        if per_rank[0]
        else "rank 0 starts from the single-process weights",
        fixes=(Substitute(boundary="start"),),
    )


def _detect_rewritten(case: Case) -> Proposal | None:
    """Proposes a broadcast if ranks begin to differ while only user code runs."""
    step = rewritten(case, "before")
    if step is not None:
        return _broadcast(
            case,
            Switch.BROADCAST_BEFORE_STEP,
            "a training step writes weights on some ranks before its forward: DDP "
            "broadcasts rank 0's weights only when it is built",
            f"at the beginning of step {step + 1} the ranks' weights are equal, at "
            "its first forward they differ",
        )
    step = rewritten(case, "after")
    if step is None or _is_of_an_average(case):
        return None
    return _broadcast(
        case,
        Switch.BROADCAST_AFTER_STEP,
        "a training step writes weights on some ranks after the optimizer's step: "
        "DDP broadcasts rank 0's weights only when it is built",
        f"after the optimizer's step {step + 1} the ranks' weights are equal, at "
        "the end of the training step they differ",
    )


def _is_of_an_average(case: Case) -> bool:
    """Returns whether the first weights that differ are of a teacher, not optimized."""
    parted = set(case.mismatched("weights", 0))
    return bool(parted) and parted <= case.untrained


def _broadcast(case: Case, fix: Switch, summary: str, fact: str) -> Proposal:
    found = Proposal(
        summary=summary,
        facts=(fact,),
        fix="load or reset the same weights on all ranks, or broadcast afterwards",
        code="for p in model.parameters():\n    dist.broadcast(p.data, 0)",
        fixes=(fix,),
    )
    if not (case.facts["draws"] or case.facts["draws_later"]):
        return found
    # Rank 0 does not draw the values of the single-process run.
    drawn = dataclasses.replace(
        found,
        facts=(fact, "with constants in place of random numbers the runs are equal"),
        fix="draw the same numbers on all ranks, or broadcast afterwards",
        fixes=(Switch.CONSTANT_DRAWS,),
    )
    return dataclasses.replace(found, fallback=drawn)
