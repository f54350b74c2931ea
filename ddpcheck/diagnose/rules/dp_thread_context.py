"""Detects dp/thread-context."""

from __future__ import annotations

from ddpcheck.diagnose.facts.data_parallel_case import DataParallelCase, Proposal

SLUG = "dp/thread-context"
LINK = "forward"


def detect(_: DataParallelCase) -> Proposal | None:
    """Proposes it on trial; the run in one thread decides."""
    return Proposal(
        slug=SLUG,
        link=LINK,
        summary="the forward depends on what only the calling thread has, and "
        "DataParallel runs its replicas in threads of their own",
        facts=(
            "with the replicas in the caller's thread DataParallel equals one process",
        ),
        fix="enter the context inside forward, or pass the value as an argument",
        fixes=("dp.same_thread",),
        speculative=True,
    )


def detect_shared(_: DataParallelCase) -> Proposal | None:
    """Proposes it on trial for what replicas write together; the run without decides."""
    return Proposal(
        slug=SLUG,
        link=LINK,
        summary="DataParallel's replicas share the lists and dicts of the model: what one "
        "of them puts there, all have",
        facts=(
            "where every replica has lists and dicts of its own, DataParallel equals "
            "one process",
        ),
        fix="return what is collected from forward, or make the list inside it",
        code="def forward(self, x):\n    penalties = []  # not self.penalties",
        fixes=("dp.same_thread", "dp.own_objects"),
        speculative=True,
    )
