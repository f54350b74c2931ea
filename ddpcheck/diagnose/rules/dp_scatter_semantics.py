"""Detects dp/scatter-semantics."""

from __future__ import annotations

from ddpcheck.diagnose.facts.data_parallel_case import DataParallelCase, Proposal
from ddpcheck.run.intervention import Switch

SLUG = "dp/scatter-semantics"
LINK = "data"


def detect(case: DataParallelCase) -> Proposal | None:
    """Proposes it as speculative; a run that splits only samples confirms it."""
    mended = "it runs" if case.run.faults else "it equals the single-process run"
    return Proposal(
        summary="DataParallel splits and gathers every tensor along dimension 0, "
        "whatever that is, and copies everything else whole; when only samples are "
        f"split and gathered, {mended}",
        facts=(),
        fix="pass samples as tensors with one row per sample, and other values as "
        "numbers or attributes of the model",
        fixes=(Switch.SPLIT_SAMPLES_ALONE,),
        speculative=True,
    )
