"""Detects ddp/param-order-mismatch."""

from __future__ import annotations

from ddpcheck.diagnose.facts.case import Case, Proposal
from ddpcheck.run.intervention import Substitute

SLUG = "ddp/param-order-mismatch"
LINK = "reduce"


def detect(case: Case) -> Proposal | None:
    """Proposes it if the order of parameters differs between ranks."""
    orders = [tuple(f.get("order", [])) for f in case.ranks]
    if len(set(orders)) < 2 or {frozenset(o) for o in orders} != {frozenset(orders[0])}:  # noqa: PLR2004
        return None
    rank = next(r for r, order in enumerate(orders) if order != orders[0])
    place = next(
        i
        for i, (a, b) in enumerate(zip(orders[0], orders[rank], strict=True))
        if a != b
    )
    return Proposal(
        summary="the ranks hold their parameters in different orders; DDP matches them by "
        "position and shape, so layers get each other's weights and gradients",
        facts=(
            f"parameter {place} is {orders[0][place]} on rank 0 and {orders[rank][place]} "
            f"on rank {rank}",
        ),
        fix="register submodules in the same order on all ranks",
        fixes=(Substitute(boundary="start"),),
        by_hand=True,
    )
