"""Detects loss/uneven-shard."""

from __future__ import annotations

from ddpcheck.diagnose.facts import rows
from ddpcheck.diagnose.facts.case import Case, Proposal
from ddpcheck.diagnose.facts.loss import counted_by, ratio_evidence, ratio_fact
from ddpcheck.diagnose.facts.text import in_group, listed
from ddpcheck.run.intervention import CountLoss, Switch
from ddpcheck.run.spec import SAMPLES

SLUG = "loss/uneven-shard"
LINK = "loss"


def detect(case: Case) -> Proposal | None:
    """Proposes it where the ratios are N / n_r with n_r the size of the shard."""
    sizes = case.run.shard_sizes
    if len(set(sizes)) < 2 or counted_by(case) != SAMPLES:  # noqa: PLR2004
        return _detect_redistributed(case)
    # After a collate, targets may have more rows than samples.
    size = "samples" if case.facts.get("collates") else "len(target)"
    return Proposal(
        slug=SLUG,
        link=LINK,
        summary="the loss is a mean over the shard, the shards differ in size, and "
        "DDP gives all of them the same weight",
        facts=(
            ratio_fact(case),
            f"the factors are N / n_r with n_r the shard size: {listed(sizes)}",
        ),
        fix=(
            "use equal shards (drop_last), or weight each rank's loss by its share "
            "of the samples"
        ),
        code=f"world, n = 1, torch.tensor(float({size}))\n"
        "if dist.is_initialized():  # one process has no group\n"
        "    world = dist.get_world_size()\n"
        "    dist.all_reduce(n)\n"
        f"loss = loss * world * {size} / n",
        fixes=(CountLoss(countable=SAMPLES),),
        evidence=ratio_evidence(case),
    )


def _detect_redistributed(case: Case) -> Proposal | None:
    """Proposes it on trial for a step that distributes the samples again."""
    moment = next(iter(rows.moments(case)), None)
    if moment is None or not moment.is_parted or case.run.faults:
        return None
    sizes = [len(rank) for rank in moment.ranks]
    # If there are fewer, samples that do not count were left out.
    is_whole = len(moment.one) >= case.facts["batch_size"]
    if len(set(sizes)) == 1 or not is_whole:
        return None
    return Proposal(
        slug=SLUG,
        link=LINK,
        summary="the training step distributes the samples again, the loss is a "
        "mean over a rank's part, the parts differ in size, and DDP gives all of "
        "them the same weight",
        facts=(
            f"in step {moment.step + 1} the ranks train on all {len(moment.one)} "
            f"samples of the single-process run, each on one rank: {listed(sizes)}",
            "when each rank's loss is weighted by its share of the samples, the "
            "ranks train as the single-process run does",
        ),
        fix="weight each rank's loss by its share of the samples",
        code="world, n = 1, torch.tensor(float(len(part)))\n"
        + in_group("world = dist.get_world_size()", "dist.all_reduce(n)")
        + "\nloss = loss * world * len(part) / n",
        fixes=(Switch.LOADER_UNPADDED,),
        speculative=True,
    )
