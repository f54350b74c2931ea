"""The loss is normalised per micro-batch, and micro-batches differ with the ranks.

What it means
Micro-batch losses are normalised one by one, and the micro-batches are others than
in one process.

Why it happens
mean_j S_j / n_j is not sum_j S_j / sum_j n_j, and which samples share a micro-batch
depends on W; or the number k of micro-batches depends on W and the loss is not
divided by it.

How it was found
d loss / d output is one constant per rank and micro-batch, and follows a count of
the targets in each micro-batch; or it is one factor on all ranks where k differs.
The count over the whole step, in one process too, decides.

Example
    import torch
    import torch.distributed as dist
    from torch import nn
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    batch = torch.randn(8, 4), torch.tensor([0, 1, -100, 2, 0, -100, -100, 1])
    def train_step(model, optimizer, batch):
        optimizer.zero_grad()
        for x, y in zip(batch[0].chunk(2), batch[1].chunk(2)):
            (nn.functional.cross_entropy(model(x), y) / 2).backward()
        optimizer.step()

Fix
One count over all micro-batches of the step and all ranks. The example is mended
by:

    def train_step(model, optimizer, batch):
        optimizer.zero_grad()
        count, world_size = (batch[1] != -100).sum(), 1
        if dist.is_initialized():
            dist.all_reduce(count)
            world_size = dist.get_world_size()
        for x, y in zip(batch[0].chunk(2), batch[1].chunk(2)):
            total = nn.functional.cross_entropy(model(x), y, reduction="sum")
            (world_size * total / count).backward()
        optimizer.step()

Not this rule if
One constant per rank over all micro-batches: loss/local-normalizer.

References
https://github.com/huggingface/transformers/pull/34191
https://github.com/huggingface/blog/pull/2414
"""

from __future__ import annotations

from ddpcheck.diagnose.case import Case, Proposal
from ddpcheck.diagnose.loss import ratio_evidence
from ddpcheck.diagnose.probes.evidence import Micro
from ddpcheck.diagnose.text import listed, number

SLUG = "loss/accum-normalizer"
LINK = "loss"


def detect(case: Case) -> Proposal | None:
    """Proposes it for one ratio per micro-batch, or one that follows their number."""
    if case.step is None or not case.step.reference.micros or not case.has_cuts:
        return None
    if case.loss_is_sound or case.couples or case.losses_replicate:
        return None
    if case.uniform_ratio is not None:
        return _number(case, case.uniform_ratio)
    return _windows(case)


def _number(case: Case, ratio: float) -> Proposal | None:
    """The sum over micro-batches of means: it grows with their number."""
    assert case.step is not None
    world = case.world_size
    ours = len(case.step.reference.micros)
    theirs = max(1, len(case.step.ranks[0].micros))
    if theirs == ours or not ratio or case.loss_collectives:
        return None
    return Proposal(
        slug=SLUG,
        link=LINK,
        summary="the loss of a micro-batch is not divided by the number of micro-batches "
        f"as it should be: one process has {ours}, a rank {theirs}",
        facts=(
            "the loss's gradient at the reference's own outputs is "
            f"{number(ratio)} times the reference's on every rank, expected {world}",
            f"micro-batches per step: {ours} in one process, {theirs} on a rank",
        ),
        fix="divide every micro-batch's loss by their number, once",
        code="(loss / num_micro_batches).backward()",
        safe=False,
        fixes=(f"loss.scale:{world / ratio!r}",),
        evidence=ratio_evidence(case),
    )


def _windows(case: Case) -> Proposal | None:
    ratios = case.micro_ratios()
    if any(residual > case.close for _, residual in ratios.values()):
        return None
    by_rank = case.rank_ratios
    if by_rank is not None:
        return None  # one factor per rank: the count is taken over all micro-batches
    name = _counted_by(case)
    shown = [ratio for ratio, _ in ratios.values()]
    facts = [
        "the loss's gradient at the reference's own outputs, over the reference's, per "
        f"rank and micro-batch: {listed(shown)}, expected {case.world_size}",
    ]
    if name is not None and case.step is not None:
        counts = [m.counts[name] for r in case.step.ranks for m in r.micros]
        facts.append(
            f"each micro-batch is divided by its own `{name}`: {listed(counts)}"
        )
    return Proposal(
        slug=SLUG,
        link=LINK,
        summary="each micro-batch's loss is divided by "
        + (f"its own number of `{name}`" if name else "a count of its own")
        + "; with ranks the micro-batches hold other samples, and the means of means "
        "differ",
        facts=tuple(facts),
        fix="one count over all micro-batches of the step and all ranks",
        code="world, n = 1, count_of_the_whole_step.clone()\n"
        "if dist.is_initialized():  # one process has no group\n"
        "    world = dist.get_world_size()\n"
        "    dist.all_reduce(n)\n"
        "(world * micro_sum / n).backward()",
        safe=False,
        fixes=(f"target.accum:{name}",) if name else (),
        evidence=ratio_evidence(case),
    )


def _counted_by(case: Case) -> str | None:
    """Returns the countable that every micro-batch's factor follows."""
    assert case.step is not None
    whole, ranks = case.step.reference.micros, case.step.ranks
    ratios = case.micro_ratios()
    fits = []
    for name in case.step.reference.counts:
        expected = {
            (rank.rank, number): _expected(whole, rank.micros, mine, name)
            for rank in ranks
            for number, mine in enumerate(rank.micros)
        }
        known = {k: e for k, e in expected.items() if e is not None and k in ratios}
        if len(set(known.values())) > 1 and all(
            abs(ratios[k][0] - e) <= case.close * abs(e) for k, e in known.items()
        ):
            fits.append(name)
    return min(fits, key=lambda name: "!= -" not in name) if fits else None


def _expected(
    whole: tuple[Micro, ...], ours: tuple[Micro, ...], mine: Micro, name: str
) -> float | None:
    """Returns the factor of a micro-batch that lies inside one of the reference's."""
    end = mine.start + mine.size
    for window in whole:
        inside = window.start <= mine.start and end <= window.start + window.size
        if inside and mine.counts[name]:
            count = window.counts[name] * len(whole)
            return count / (mine.counts[name] * len(ours))
    return None
