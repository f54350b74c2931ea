"""Detects dp/scalar-gather."""

from __future__ import annotations

from ddpcheck.diagnose.facts.data_parallel_case import DataParallelCase, Proposal
from ddpcheck.run.intervention import Switch

SLUG = "dp/scalar-gather"
LINK = "loss"


def detect(_: DataParallelCase) -> Proposal | None:
    """Proposes it as speculative; a run with one scalar confirms it."""
    return Proposal(
        summary="each replica's forward returns a scalar, and DataParallel gathers "
        "these to a vector; the loss computed from it is not the single-process "
        "scalar",
        facts=(
            "with the weighted mean of the replicas' scalars in place of the "
            "vector, DataParallel equals the single-process run",
        ),
        fix="take the mean over replicas, weighted by their number of samples, or "
        "return sums and counts",
        code="loss = scalars.mean()",
        fixes=(Switch.MEAN_OF_SCALARS,),
        speculative=True,
    )
