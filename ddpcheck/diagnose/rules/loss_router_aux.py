"""A load-balancing loss multiplies two means of the shard."""

from __future__ import annotations

from ddpcheck.diagnose.case import Case, Proposal
from ddpcheck.diagnose.loss import global_loss_fix, ratio_evidence
from ddpcheck.diagnose.text import names, number

SLUG = "loss/router-aux"
LINK = "loss"


def detect(case: Case) -> Proposal | None:
    """Proposes it where only softmax scores inside the network get a wrong gradient."""
    if case.step is None or not case.has_cuts or case.loss_is_sound:
        return None
    if case.losses_replicate or case.uniform_ratio is not None:
        return None
    world, close = case.world_size, case.close
    cuts = [c for rank in case.step.ranks for c in rank.cuts if c.norm or c.residual]
    broken = [
        c for c in cuts if abs(c.ratio - world) > close * world or c.residual > close
    ]
    if len(broken) == len(cuts) or not broken:
        return None
    if not all(c.on_the_way and c.row_sum <= close for c in broken):
        return None
    modules = list(dict.fromkeys(c.module for c in broken))
    return Proposal(
        slug=SLUG,
        link=LINK,
        summary="a load-balancing term multiplies two means over the shard, the share of "
        "tokens and the mean probability of each expert",
        facts=(
            f"the loss's gradient is wrong at {names(modules)} alone, by up to "
            f"{number(max(c.residual for c in broken))} of its size, and right at every "
            "other output",
            "what is wrong there sums to 0 over the last dimension: it comes through a "
            "softmax whose result goes on into the network",
        ),
        fix="all-reduce the share of tokens per expert, and scale by the world size",
        code="dist.all_reduce(tokens_per_expert)  # counts, no gradient\n"
        "aux = dist.get_world_size() * (tokens_per_expert / total * mean_prob).sum()",
        fixes=global_loss_fix(case),
        evidence=ratio_evidence(case),
    )
