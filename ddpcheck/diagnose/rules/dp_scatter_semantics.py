"""Detects dp/scatter-semantics."""

from __future__ import annotations

from ddpcheck.diagnose.facts.data_parallel_case import DataParallelCase, Proposal

SLUG = "dp/scatter-semantics"
LINK = "data"


def detect(case: DataParallelCase) -> Proposal | None:
    """Proposes it on trial; the run in which samples alone are split decides."""
    mended = "it runs" if case.run.faults else "it equals one process"
    return Proposal(
        slug=SLUG,
        link=LINK,
        summary="DataParallel splits and gathers every tensor along dimension 0, whatever "
        "that is, and copies all else whole; where samples alone are split and put "
        f"together {mended}",
        facts=(),
        fix="pass samples as tensors of one row each, and what belongs to no sample as a "
        "number or an attribute of the model",
        fixes=("dp.by_samples",),
        speculative=True,
    )
