"""Detects state/inplace-buffer-version."""

from __future__ import annotations

from ddpcheck.diagnose.facts.case import Case, Proposal
from ddpcheck.run.intervention import Switch

SLUG = "state/inplace-buffer-version"
LINK = "forward"


def detect(case: Case) -> Proposal | None:
    """Proposes it if autograd raises it on ranks and not in the single-process run."""
    if "modified by an inplace operation" not in case.fault_text:
        return None
    if not case.facts["has_buffers"]:
        return None  # the target's own collective, in place
    return Proposal(
        summary=(
            "a buffer that backward needs is overwritten before backward, on ranks only"
        ),
        facts=(f"autograd raises: {case.fault_text[:100]}",),
        fix="run one forward per backward, clone the buffer in forward, or set "
        "broadcast_buffers=False",
        code="scale = self.scale.clone()  # what backward keeps",
        fixes=(Switch.COPIED_SAVED_TENSORS,),
    )
