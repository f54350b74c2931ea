"""Detects dp/thread-context."""

from __future__ import annotations

from ddpcheck.diagnose.facts.data_parallel_case import DataParallelCase, Proposal
from ddpcheck.run.intervention import Switch

SLUG = "dp/thread-context"
LINK = "forward"


def detect(_: DataParallelCase) -> Proposal | None:
    """Proposes it as speculative; a run in one thread confirms it."""
    return Proposal(
        summary="the forward depends on state of the calling thread, and "
        "DataParallel runs each replica in a thread of its own",
        facts=(
            "with the replicas in the calling thread, DataParallel equals the "
            "single-process run",
        ),
        fix="enter the context inside forward, or pass the value as an argument",
        fixes=(Switch.SAME_THREAD,),
        speculative=True,
    )


def detect_shared(_: DataParallelCase) -> Proposal | None:
    """Proposes it as speculative for objects that replicas share; a run without confirms it."""
    return Proposal(
        summary="DataParallel's replicas share the lists and dicts of the model: "
        "an entry added by one replica is seen by all",
        facts=(
            "when every replica has its own lists and dicts, DataParallel equals "
            "the single-process run",
        ),
        fix="return the collected values from forward, or create the list inside it",
        code="def forward(self, x):\n    penalties = []  # not self.penalties",
        fixes=(Switch.SAME_THREAD, Switch.OWN_OBJECTS),
        speculative=True,
    )
