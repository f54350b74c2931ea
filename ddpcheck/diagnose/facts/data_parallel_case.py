"""Facts of a divergence that occurs only under DataParallel."""

from __future__ import annotations

from dataclasses import dataclass

from ddpcheck.diagnose.proposal import Proposal
from ddpcheck.report.data import Run

__all__ = ["DataParallelCase", "Proposal"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DataParallelCase:
    """A divergence that occurs only under DataParallel.

    `has_batch_norm`: torch's batch norm, which no finding of DDP runs explains.
    `draws`: the single-process run draws random numbers with torch's generator.
    """

    run: Run
    has_batch_norm: bool = False
    draws: bool = False
