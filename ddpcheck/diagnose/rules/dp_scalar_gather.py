"""Detects dp/scalar-gather."""

from __future__ import annotations

from ddpcheck.diagnose.facts.data_parallel_case import DataParallelCase, Proposal

SLUG = "dp/scalar-gather"
LINK = "loss"


def detect(_: DataParallelCase) -> Proposal | None:
    """Proposes it on trial; the run with one scalar decides."""
    return Proposal(
        slug=SLUG,
        link=LINK,
        summary="the forward returns a scalar per replica, which DataParallel gathers to a "
        "vector with one for each; what is made of it is not the scalar of one process",
        facts=(
            "with the replicas' scalars gathered to their weighted mean DataParallel "
            "equals one process",
        ),
        fix="take the mean over replicas, weighed by their samples, or return sums and "
        "counts",
        code="loss = scalars.mean()",
        fixes=("dp.mean_scalars",),
        speculative=True,
    )
