"""The loss is divided by a count of the shard that depends on the data."""

from __future__ import annotations

from ddpcheck.diagnose.case import Case, Proposal
from ddpcheck.diagnose.loss import (
    counted_by,
    global_loss_fix,
    ratio_evidence,
    ratio_fact,
)
from ddpcheck.diagnose.text import listed, number
from ddpcheck.run.spec import SAMPLES

SLUG = "loss/local-normalizer"
LINK = "loss"


def detect(case: Case) -> Proposal | None:
    """Proposes it for one ratio per rank, or several, in a loss that couples nothing."""
    if not case.has_cuts or case.loss_is_sound or case.losses_replicate:
        return None
    if case.uniform_ratio is not None or case.couples is not False:
        return None
    name = counted_by(case)
    if name == SAMPLES:
        return None  # loss/uneven-shard
    ratios = case.rank_ratios
    facts = [ratio_fact(case)]
    fixes = global_loss_fix(case)
    if name is not None and case.step is not None and ratios is not None:
        counts = [r.counts[name] for r in case.step.ranks]
        total = sum(counts)
        facts.append(
            f"the factors are N / n_r with n_r the count of `{name}`: "
            f"{listed(counts)} on the ranks, {number(total)} in all"
        )
        fixes = (f"loss.count:{name}",)
    else:
        facts.append(
            "moving the outputs of one half of the batch leaves the gradient at the "
            "other half alone: only what the loss divides by differs"
        )
    what = (
        f"the number of `{name}` in the shard"
        if name
        else "counts or weights of the shard"
    )
    return Proposal(
        slug=SLUG,
        link=LINK,
        summary=f"the loss is divided by {what}, which differs between ranks; DDP "
        "averages the quotients",
        facts=tuple(facts),
        fix="divide by the count of all ranks and multiply by the world size",
        code="n = count.clone()\ndist.all_reduce(n)\n"
        "loss = dist.get_world_size() * local_sum / n",
        fixes=fixes,
        evidence=ratio_evidence(case),
    )
