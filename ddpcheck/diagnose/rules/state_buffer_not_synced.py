"""Detects state/buffer-not-synced."""

from __future__ import annotations

from ddpcheck.compare import tolerance
from ddpcheck.diagnose.facts import fitted
from ddpcheck.diagnose.facts.buffers import (
    diverging_buffers,
    read_at_once,
    statistics_at_start,
)
from ddpcheck.diagnose.facts.case import Case, Proposal
from ddpcheck.diagnose.facts.external_state import before_gradients
from ddpcheck.diagnose.facts.text import names
from ddpcheck.diagnose.proposal import replaced
from ddpcheck.run.intervention import Substitute, Switch

SLUG = "state/buffer-not-synced"
LINK = "forward"


def detect(case: Case) -> Proposal | None:
    """Proposes a broadcast where buffers differ before the first step."""
    per_rank = [f.get("start_buffers_differ", []) for f in case.ranks]
    wrong = [(rank, found) for rank, found in enumerate(per_rank) if found]
    if not wrong:
        fit = fitted.by_the_step(case, sent=False) or read_at_once(case, sent=False)
        written = _detect_written_in_step(case)
        if written is not None:
            return replaced(written, fallback=fit)
        return fit or _detect_outside_model(case)
    rank, found = wrong[-1]
    buffers = "1 buffer" if len(found) == 1 else f"{len(found)} buffers"
    where = f"differs from the single-process run in {buffers}: {names(found)}"
    states = [f.get("start_buffers") for f in case.ranks]
    if _norms_differ(case) and statistics_at_start(case):
        return None  # norms that use the shard do so in model(), too
    if None not in states and tolerance.digests_agree(states, case.rtol):
        return _built_otherwise(f"before the first step every rank {where}")
    return Proposal(
        summary="the ranks start from different buffers, and DDP was built with "
        "broadcast_buffers=False",
        facts=(f"before the first step rank {rank} {where}",),
        fix="broadcast the buffers once after wrapping",
        code="for b in model.buffers():\n    dist.broadcast(b, 0)",
        code_rests_on=""
        if per_rank[0]
        else "rank 0 starts from the single-process buffers",
        fixes=(Substitute(boundary="start"),),
    )


def _norms_differ(case: Case) -> bool:
    """Returns whether the outputs of norms differ for another reason than buffers."""
    found = (m for m in case.diverging() if m.is_batch_norm or m.normalises)
    return any(not m.through_buffers for m in found)


def _detect_written_in_step(case: Case) -> Proposal | None:
    """Proposes it as speculative if the step writes buffers before its forward."""
    owner = diverging_buffers(case, batch_norm=False)
    if owner is None or owner.written_in_forward or owner.are_broadcast:
        return None
    return Proposal(
        summary="the training step writes different buffers on different ranks, "
        "and DDP was built with broadcast_buffers=False",
        facts=(*owner.facts, "no forward writes these buffers: the training step does"),
        fix="let DDP broadcast rank 0's buffers, or write the same on all ranks",
        code="model = DistributedDataParallel(model)  # broadcast_buffers=True",
        fixes=(Switch.BUFFER_BROADCAST_ON,),
        module=owner.modules[0],
        speculative=True,
    )


def _detect_outside_model(case: Case) -> Proposal | None:
    """Proposes it as speculative for statistics that are kept in no buffer of the model."""
    found = before_gradients(case)
    if found is None or found.has_weights or found.decides:
        return None
    on_trial = Proposal(
        link="update",
        summary="state outside the model's parameters and buffers is updated from "
        "the local shard: DDP does not broadcast it, so every rank continues with "
        "the state of its own data",
        facts=found.facts,
        fix="all-reduce the values that update it, in the same way on all ranks",
        fixes=found.fixes,
        speculative=True,
    )
    if not found.is_alike:
        return on_trial
    return replaced(
        on_trial,
        summary="state outside the model's parameters and buffers gets the same "
        "update on all ranks, but another one than in the single-process run",
        fix=(
            "update it with the values of the global batch, as the single-process "
            "run does"
        ),
    )


def _built_otherwise(fact: str) -> Proposal:
    return Proposal(
        summary="all ranks start from the same buffers, but not from the "
        "single-process ones: model() returns other buffers when a process group "
        "exists",
        facts=(fact,),
        fix=(
            "build the model before the process group, or load the single-process "
            "buffers"
        ),
        fixes=(Substitute(boundary="start"),),
    )
