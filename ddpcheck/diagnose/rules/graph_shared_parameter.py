"""Detects graph/shared-parameter."""

from __future__ import annotations

from ddpcheck.diagnose.facts.case import Case, Proposal

SLUG = "graph/shared-parameter"
LINK = "reduce"

_READY_TWICE = ("mark a variable ready only once", "marked as ready twice")


def detect(case: Case) -> Proposal | None:
    """Proposes it if DDP raises it, and no nested backward explains it."""
    if not case.reduce_is_broken or any(f.get("nested_backwards") for f in case.ranks):
        return None
    if not any(text in case.fault_text for text in _READY_TWICE):
        return None
    if any(f.get("opaque_output") for f in case.ranks):
        return None
    if any("BB" in f.get("events", "") for f in case.ranks):
        return None  # ddp/multi-backward
    finds = any(f.get("find_unused") for f in case.ranks)
    facts = [f"DDP raises: {case.fault_text[:100]}"]
    if finds:
        facts.append(
            "find_unused_parameters=True: DDP marks parameters outside the "
            "forward's graph as ready, and they get a gradient later"
        )
    return Proposal(
        summary="a parameter's gradient is ready twice in one backward: the "
        "parameter is also used outside the forward, or in several forwards",
        facts=tuple(facts),
        fix="use every parameter inside one forward of the wrapped model, or set "
        "static_graph=True",
        by_hand=True,
    )
