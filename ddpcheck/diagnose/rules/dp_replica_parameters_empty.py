"""Detects dp/replica-parameters-empty."""

from __future__ import annotations

from ddpcheck.diagnose.facts.data_parallel_case import DataParallelCase, Proposal

SLUG = "dp/replica-parameters-empty"
LINK = "forward"


def detect(_: DataParallelCase) -> Proposal | None:
    """Proposes it on trial; the run in which replicas have them decides."""
    return Proposal(
        slug=SLUG,
        link=LINK,
        summary="the forward asks for parameters, and DataParallel's replicas have none: "
        "parameters() is empty there, and what was one is a plain tensor",
        facts=(
            "with parameters() of the replicas filled DataParallel equals one process",
        ),
        fix="compute it outside forward, on the model itself, or read the attributes",
        code="loss = loss + penalty(model.module.parameters())",
        fixes=("dp.replica_parameters",),
        speculative=True,
    )
