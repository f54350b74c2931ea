"""Detects dp/replica-parameters-empty."""

from __future__ import annotations

from ddpcheck.diagnose.facts.data_parallel_case import DataParallelCase, Proposal
from ddpcheck.run.intervention import Switch

SLUG = "dp/replica-parameters-empty"
LINK = "forward"


def detect(_: DataParallelCase) -> Proposal | None:
    """Proposes it as speculative; a run in which replicas have parameters confirms it."""
    return Proposal(
        summary="the forward reads parameters(), which is empty in DataParallel's "
        "replicas: their parameters are plain tensors",
        facts=(
            "with parameters() of the replicas filled in, DataParallel equals the "
            "single-process run",
        ),
        fix=(
            "compute the term outside forward, on the model itself, or read the "
            "attributes"
        ),
        code="loss = loss + penalty(model.module.parameters())",
        fixes=(Switch.REPLICA_PARAMETERS,),
        speculative=True,
    )
