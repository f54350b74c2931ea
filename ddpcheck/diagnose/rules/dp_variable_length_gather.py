"""Detects dp/variable-length-gather."""

from __future__ import annotations

from ddpcheck.diagnose.facts.data_parallel_case import DataParallelCase, Proposal
from ddpcheck.run.intervention import Switch

SLUG = "dp/variable-length-gather"
LINK = "forward"


def detect(case: DataParallelCase) -> Proposal | None:
    """Proposes it if DataParallel raises; a run with padded outputs confirms it."""
    if not case.run.faults:
        return None
    return Proposal(
        summary="DataParallel's replicas return tensors of different lengths; with "
        "outputs padded to the longest it runs",
        facts=(),
        fix="pad to a length that all replicas know (total_length)",
        fixes=(Switch.PADDED_GATHER,),
        speculative=True,
    )
