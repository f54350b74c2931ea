"""Buffers differ between ranks from the start."""

from __future__ import annotations

from ddpcheck.diagnose.case import Case, Proposal
from ddpcheck.diagnose.text import names

SLUG = "state/buffer-not-synced"
LINK = "forward"


def detect(case: Case) -> Proposal | None:
    """Proposes a broadcast where buffers differ before the first step."""
    wrong = [
        r
        for r, found in enumerate(case.rank_facts("start_buffers_differ", []))
        if found
    ]
    if not wrong or not wrong[-1]:
        return None
    found = case.rank_facts("start_buffers_differ", [])[wrong[-1]]
    return Proposal(
        slug=SLUG,
        link=LINK,
        summary="the ranks start from different buffers, and DDP was told not to "
        "broadcast them",
        facts=(
            f"before the first step rank {wrong[-1]} differs from one process in "
            f"{len(found)} buffers: {names(found)}",
        ),
        fix="broadcast the buffers once after wrapping",
        code="for b in model.buffers():\n    dist.broadcast(b, 0)",
        fixes=("ddp.broadcast",),
    )
