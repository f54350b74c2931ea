"""A communication hook returns something else than the mean."""

from __future__ import annotations

from ddpcheck.diagnose.case import Case, Proposal

SLUG = "sync/comm-hook-semantics"
LINK = "reduce"


def detect(case: Case) -> Proposal | None:
    """Proposes it where a hook was registered and DDP without it is right."""
    count = max(case.rank_facts("comm_hooks", 0), default=0)
    if not case.reduce_is_broken or not count:
        return None
    return Proposal(
        slug=SLUG,
        link=LINK,
        summary="a communication hook returns something else than the mean of the ranks' "
        "gradients",
        facts=(f"register_comm_hook was called {count} times",),
        fix="divide by the world size in the hook; compress only what the tolerance allows",
        code="dist.all_reduce(bucket.buffer().div_(dist.get_world_size()))",
        fixes=("ddp.rewrap",),
    )
