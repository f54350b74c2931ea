"""What rules may ask of a divergence that DataParallel alone has."""

from __future__ import annotations

from dataclasses import dataclass

from ddpcheck.diagnose.proposal import Proposal
from ddpcheck.report.data import Run

__all__ = ["DataParallelCase", "Proposal"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DataParallelCase:
    """A divergence that DataParallel alone has.

    `has_batch_norm`: of torch's, and no finding of DDP's runs blames it. `draws`: one
    process draws random numbers with torch's generator.
    """

    run: Run
    has_batch_norm: bool = False
    draws: bool = False
