"""The forward writes parameters from the rank's own data."""

from __future__ import annotations

from ddpcheck.diagnose.case import Case, Proposal
from ddpcheck.diagnose.text import module, names

SLUG = "state/forward-writes-parameter"
LINK = "forward"


def detect(case: Case) -> Proposal | None:
    """Proposes it for modules that change their parameters in forward."""
    modules = [m.name for m in case.modules() if m.writes_parameters]
    if not modules:
        return None
    first = case.first_broken("weights")
    if first is None:
        return None
    return Proposal(
        slug=SLUG,
        link=LINK,
        summary="a forward changes weights from the rank's own shard, so the ranks' weights "
        "drift apart for good",
        facts=(
            f"modules that write their own parameters in forward: "
            f"{names(module(n) for n in modules)}",
            f"weights differ from one process from step {first + 1} on",
        ),
        fix="all-reduce what the update is made of, or apply it after the step on all rows",
        code="dist.all_reduce(count)\ndist.all_reduce(total)\ncodebook.copy_(total / count)",
        fixes=tuple(f"module.global:{n}" for n in dict.fromkeys(modules)),
        module=modules[0],
    )
