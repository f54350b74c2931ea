"""A mean over shards of different sizes."""

from __future__ import annotations

from ddpcheck.diagnose.case import Case, Proposal
from ddpcheck.diagnose.loss import counted_by, ratio_evidence, ratio_fact
from ddpcheck.diagnose.text import listed
from ddpcheck.run.spec import SAMPLES

SLUG = "loss/uneven-shard"
LINK = "loss"


def detect(case: Case) -> Proposal | None:
    """Proposes it where the ratios are N / n_r with n_r the size of the shard."""
    if len(set(case.run.shard_sizes)) < 2 or counted_by(case) != SAMPLES:  # noqa: PLR2004
        return None
    return Proposal(
        slug=SLUG,
        link=LINK,
        summary="the loss is a mean over the shard, the shards differ in size, and DDP "
        "weighs them alike",
        facts=(
            ratio_fact(case),
            f"the factors are N / n_r with n_r the shard size: {listed(case.run.shard_sizes)}",
        ),
        fix="equal shards (drop_last), or weigh each rank's loss by its share",
        code="n = torch.tensor(float(len(target)))\ndist.all_reduce(n)\n"
        "loss = loss * dist.get_world_size() * len(target) / n",
        fixes=(f"loss.count:{SAMPLES}",),
        evidence=ratio_evidence(case),
    )
