"""Detects loss/empty-shard."""

from __future__ import annotations

import math

from ddpcheck.diagnose.facts.case import Case, Proposal
from ddpcheck.diagnose.facts.loss import global_loss_fix, ratio_evidence
from ddpcheck.diagnose.facts.text import listed, names

SLUG = "loss/empty-shard"
LINK = "loss"


def detect(case: Case) -> Proposal | None:
    """Proposes it where a rank has no valid item: no gradient, or NaN."""
    if case.probed is None or not case.has_cuts or case.losses_replicate:
        return None
    if case.couples:
        return None
    empty = [
        r.rank
        for r, (ratio, _) in zip(case.probed.ranks, case.ratios(), strict=True)
        if not math.isfinite(ratio) or (ratio == 0 and _nan(r.loss)) or _nan(r.loss)
    ]
    silent = [
        r.rank
        for r in case.probed.ranks
        if r.cuts
        and all(c.ratio == 0 for c in r.cuts)
        and any(c.norm == 0 for c in r.cuts)
    ]
    if not empty and not silent:
        return None
    ranks = empty or silent
    return Proposal(
        slug=SLUG,
        link=LINK,
        summary="a shard holds no valid item, so its mean is 0/0",
        facts=(
            f"rank{'s' if len(ranks) > 1 else ''} {names(map(str, ranks))} of "
            f"{case.world_size}: the loss is NaN or has no gradient",
            "per-rank losses: "
            f"{listed(v if v is not None else math.nan for v in case.rank_losses())}",
        ),
        fix="divide by the count of all ranks, clamped after the all-reduce",
        code="world = 1\n"
        "if dist.is_initialized():  # one process has no group\n"
        "    world = dist.get_world_size()\n"
        "    dist.all_reduce(n)\n"
        "loss = world * local_sum / n.clamp(min=1)",
        code_rests_on="a rank's mean is 0 / 0, and the loss calls no collective"
        if empty and not case.loss_asks_others
        else "",
        fixes=global_loss_fix(case),
        evidence=ratio_evidence(case),
    )


def _nan(value: float | None) -> bool:
    return value is not None and math.isnan(value)
