"""Detects dp/replica-state-lost."""

from __future__ import annotations

from ddpcheck.diagnose.facts.data_parallel_case import DataParallelCase, Proposal
from ddpcheck.diagnose.facts.text import number
from ddpcheck.run.intervention import Switch

SLUG = "dp/replica-state-lost"
LINK = "update"


def detect(case: DataParallelCase) -> Proposal | None:
    """Proposes it if buffers differ and the first gradients do not."""
    first = case.run.gradients.excess_by_step[:1]
    worst = case.run.buffers.worst
    if first and first[0] > 1:
        return None
    if not case.run.buffers.mismatched or worst is None:
        return _detect_attributes()
    return Proposal(
        summary="DataParallel discards what replicas write: buffers keep their "
        "first value, or only the first replica's update",
        facts=(
            f"{worst.name} differs by {number(worst.rel_diff)} relative after step "
            f"{worst.step + 1}; the gradients of the first step are right",
        ),
        fix="use DistributedDataParallel, or write buffers in place",
        code="model = DistributedDataParallel(model)",
    )


def _detect_attributes() -> Proposal:
    """Proposes it as speculative for attributes; a run that keeps them confirms it."""
    return Proposal(
        summary="DataParallel discards attributes that replicas set: a counter, a "
        "cache or a hidden state keeps its first value",
        facts=(
            "when the attributes that replicas set are kept, DataParallel equals "
            "the single-process run",
        ),
        fix="use DistributedDataParallel, or a buffer that is written in place; "
        "pass per-sample state as an argument and return it",
        code="self.register_buffer('steps', torch.zeros((), dtype=torch.long))",
        fixes=(Switch.KEPT_REPLICA_STATE,),
        speculative=True,
    )
