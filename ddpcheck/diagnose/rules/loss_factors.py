"""Detects gradients with a wrong factor: one table of places and factors, seven slugs.

facts/factors.py measures where a factor sits and what it is, and TABLE says what that
means and how to mend it. Of a slug's rows the first that fits is its proposal.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ddpcheck.diagnose.facts import factors, loss
from ddpcheck.diagnose.facts.case import Case, Proposal
from ddpcheck.diagnose.facts.events import common_factor
from ddpcheck.diagnose.facts.factors import Reading
from ddpcheck.diagnose.facts.text import WORLD, in_group, listed, names, number
from ddpcheck.diagnose.proposal import replaced, tried
from ddpcheck.report.data import Evidence
from ddpcheck.run.intervention import (
    CountLoss,
    CountMicroBatches,
    Interventions,
    ScaleGradients,
    ScaleLoss,
    ScaleTerms,
    Switch,
)
from ddpcheck.run.spec import SAMPLES

ACCUM, COUNT = "loss/accum-normalizer", "loss/local-normalizer"
DOUBLE, MISSING = "loss/double-world-scale", "loss/missing-world-scale"
EMPTY, SUM, UNEVEN = "loss/empty-shard", "loss/sum-reduction", "loss/uneven-shard"

# Sentences of several rows.
_AFTER = (
    "compared with the single-process run, the step multiplies the gradients by "
    "{after} on the ranks after backward",
    "before it does so, they are right",
)
_SOME = (
    "gradients that are {factor} times the single-process ones: {wrong}",
    "all others are right",
)
_IN_ALL = in_group("world = dist.get_world_size()", "dist.all_reduce(n)")
_CODE_OF_STEP = (
    f"world, n = 1, count_of_the_whole_step.clone()\n{_IN_ALL}\n"
    "(world * micro_sum / n).backward()"
)
_CODE_OF_COUNT = f"world, n = 1, count.clone()\n{_IN_ALL}\n"


def _is_whole(case: Case) -> bool:
    return not case.is_part


def _counts_its_own(case: Case) -> bool:
    # A sum over ranks is the right divisor for a count, but not for a maximum.
    return not case.loss_asks_others


def _all_gradients(case: Case) -> Sequence[Interventions]:
    if factors.are_divided_by_world(case):  # a step with several backwards: once
        return [(ScaleGradients(factor=float(case.world_size)),)]
    return loss.scalings(case, case.world_size)


def _some_gradients(case: Case, factor: float) -> Sequence[Interventions]:
    wrong = tuple(case.mismatched("gradients", 0))
    return [(ScaleGradients(factor=factor, names=wrong),)]


def _added_gradient(factor: float) -> Sequence[Interventions]:
    # The gradient of the loss scales with it, the added one does not.
    return [(ScaleLoss(factor=1 / factor), ScaleGradients(factor=factor))]


def _wide(case: Case) -> Sequence[Interventions]:
    return [f for f in (loss.global_loss_fix(case), loss.whole_model_fix(case)) if f]


def _without_factor(case: Case) -> Sequence[Interventions]:
    if loss.differs_with_equal_counts(case):  # the divisor is more than a count
        return [(Switch.SUM_OF_NUMBERS,)]
    # The step multiplies by the world size, as is right for a sum.
    return [(*loss.global_loss_fix(case), ScaleLoss(factor=1 / case.world_size))]


def _all_samples(case: Case) -> Sequence[Interventions]:
    found = loss.whole_model_fix(case) or loss.global_loss_of_other_rows(case)
    found = found or loss.whole_step_fix(case)
    return [found] if found else []


def _micro_counts(case: Case) -> Sequence[Interventions]:
    count = factors.divisor(case)
    return [loss.global_loss_fix(case) if count is None else (count,)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What a factor at a place means, in sentences with words of WORDS in braces.

    `fixes` returns runs to try, the best first. `on_trial`: as Proposal.speculative.
    `falls_back`: on the next row of the slug that fits. `rests_on`: whether what was
    measured is evidence for the code. The rest is as in Proposal; on trial `evidence`
    is {} where none is given.
    """

    slug: str
    summary: str
    facts: tuple[str, ...]
    fix: str
    fixes: Callable[[Case], Sequence[Interventions]]
    code: str = ""
    rests_on: Callable[[Case], bool] | None = None
    evidence: Callable[[Case], Evidence] | None = None
    on_trial: bool = False
    last_resort: int = 0
    falls_back: bool = False


_BY_COUNTS = Row(
    slug=COUNT,
    summary="the loss is divided by counts or weights of the shard, which differ "
    "between ranks, and DDP averages the quotients",
    facts=("{ratios}", "{outputs}"),
    fix="compute counts, and weights derived from them, over the samples of all ranks; "
    "divide by those and multiply by the world size",
    fixes=_wide,
    code=_CODE_OF_COUNT + "{term} = world * local_sum / n",
    rests_on=lambda case: _counts_its_own(case) and case.couplings.count(case.close),
    falls_back=True,
)
_BY_COUNT = replace(
    _BY_COUNTS,
    summary="the loss is divided by the number of `{count}` in the shard, which "
    "differs between ranks, and DDP averages the quotients",
    facts=(
        "{ratios}",
        "the factors are N / n_r with n_r the count of `{count}`: {counts}",
    ),
    fix="divide by the count of all ranks and multiply by the world size",
    rests_on=_counts_its_own,
    fixes=lambda case: [(CountLoss(countable=loss.counted_by(case) or ""),)],
)
_BY_COUNT_LATE = replace(
    _BY_COUNT,
    summary="after backward the step divides the gradients by the rank's own number of "
    "`{count}`, which differs between ranks",
    fixes=lambda case: [*_BY_COUNT.fixes(case), *_wide(case)],
    code=_CODE_OF_COUNT + "parameter.grad.mul_(world / n)  # of a sum",
    falls_back=False,
)
_TIMES_W = Row(
    slug=DOUBLE,
    summary="the loss is a mean over the shard and is also multiplied by {W}: every "
    "gradient is {W} times the single-process one",
    facts=("{ratios}",),
    fix="remove the factor; it belongs to a sum over a global count only",
    fixes=lambda case: loss.scalings(case, 1 / case.world_size),
    code="loss = criterion(output, target)  # without * world_size",
    rests_on=_is_whole,
)

_ADDED = Row(
    slug=MISSING,
    summary="a custom backward adds the rank's share of the gradient of all ranks, "
    "and DDP divides it by {W}: that term of the loss has 1/{W} of its weight",
    facts=(
        "outputs and the loss's gradient at them are right; a part of the parameters' "
        "gradients does not scale with it",
    ),
    fix="multiply the gradient that the autograd function adds by the world size",
    fixes=lambda case: _added_gradient(float(case.world_size)),
    code=f"{WORLD}return grad, world * torch.ones_like(aux)",
    on_trial=True,
    last_resort=1,
)

_PARTLY_TIMES_W = Row(
    slug=DOUBLE,
    summary="every rank multiplies the loss of the global batch by {W}, which is "
    "right only for outputs whose gradient stays on their rank; parameters that "
    "the loss uses directly get {W} times the single-process gradient",
    facts=_SOME,
    fix="gather with autograd, and remove the factor",
    evidence=lambda case: {"factor": common_factor(case) or 1.0},
    fixes=lambda case: _some_gradients(case, 1 / case.world_size),
    on_trial=True,
    last_resort=1,
)

TABLE: dict[Reading, Row] = {
    ("after backward", "1/W", ""): Row(
        slug=MISSING,
        summary="after backward the step divides the gradients by {W}, and DDP has "
        "averaged them already: every gradient is 1/{W} of the single-process one",
        facts=_AFTER,
        fix="remove the division: DDP divides by the world size",
        fixes=_all_gradients,
        code="optimizer.step()  # without parameter.grad /= world_size",
        falls_back=True,
    ),
    ("whole loss", "1/W", "mean"): Row(
        slug=MISSING,
        summary="each rank divides its sum by the count of all ranks, and DDP divides "
        "by {W} again: every gradient is 1/{W} of the single-process one",
        facts=("{ratios}", "{mean}"),
        fix="multiply by the world size",
        fixes=_all_gradients,
        code=f"{WORLD}loss = world * local_sum / global_count",
        falls_back=True,
    ),
    ("whole loss", "1/W", "own mean"): Row(
        slug=MISSING,
        summary="the loss is a mean over the shard and is also divided by {W}, which "
        "DDP does, too",
        facts=("{ratios}", "{mean}"),
        fix="remove the division: DDP divides by the world size",
        fixes=lambda case: loss.scalings(case, case.world_size),
        code="loss = criterion(output, target)  # without / world_size",
        rests_on=_is_whole,
    ),
    ("all parameters", "1/W", ""): Row(
        slug=MISSING,
        summary="each rank has its part of the gradient of the global loss, and DDP "
        "divides it by {W}: every gradient is 1/{W} of the single-process one",
        facts=(
            "all gradients of the first step are {1/W} times the single-process ones",
            "{collectives} collectives called in one step",
        ),
        fix="multiply by the world size",
        fixes=_all_gradients,
        code=f"{WORLD}loss = world * loss",
        on_trial=True,
    ),
    ("some parameters", "1/W", ""): Row(
        slug=MISSING,
        summary="backward starts from the rank's part of the gradient of the global "
        "loss, and DDP divides it by {W} again: the parameters that it reaches get "
        "1/{W} of the single-process gradient",
        facts=_SOME,
        fix="multiply the gradient that backward starts from by the world size",
        fixes=lambda case: _some_gradients(case, float(case.world_size)),
        code=f"{WORLD}features.backward(world * gradient)",
        on_trial=True,
        last_resort=1,
    ),
    ("one term", "1/W", "count of all"): Row(
        slug=MISSING,
        summary="one term of the loss is divided by the count of all ranks, and DDP "
        "divides by {W} again: that term has 1/{W} of its weight",
        facts=(
            "{ratios}",
            "when the sums over ranks without gradient are replaced by means over "
            "ranks, the gradient is right",
        ),
        fix="multiply that term by the world size",
        fixes=lambda _: [(Switch.MEAN_OF_COUNTS,)],
        code=f"{WORLD}loss = world * local_sum / global_count + mean_term",
        evidence=loss.ratio_evidence,
        on_trial=True,
    ),
    ("custom backward", "1/W", ""): _ADDED,
    ("micro-batch", "k", ""): Row(
        slug=ACCUM,
        summary="the loss of a micro-batch is not divided by the number of "
        "micro-batches: the single-process run has {k}, a rank {k of a rank}",
        facts=(
            "given the single-process outputs, the loss's gradient on every rank is "
            "{ratio} times the single-process one, expected {W}",
            "micro-batches per step: {k} in the single-process run, {k of a rank} on "
            "a rank",
        ),
        fix="divide the loss of every micro-batch by the number of micro-batches, once",
        fixes=lambda case: [
            (ScaleLoss(factor=case.world_size / (case.uniform_ratio or 1)),)
        ],
        code="(loss / num_micro_batches).backward()",
    ),
    ("micro-batch", "N/n_r", ""): Row(
        slug=ACCUM,
        summary="each micro-batch's loss is divided by {micro count}; on ranks the "
        "micro-batches hold other samples, so the mean of these means differs",
        facts=(
            "given the single-process outputs, the loss's gradient divided by the "
            "single-process one, per rank and micro-batch: {micro ratios}, expected {W}",
        ),
        fix="divide by one count over all micro-batches of the step and all ranks",
        fixes=_micro_counts,
        code=_CODE_OF_STEP,
        evidence=loss.micro_evidence,
    ),
    ("micro-batch", "N/n", ""): Row(
        slug=ACCUM,
        summary="each micro-batch's loss is a mean over its own samples, and the "
        "micro-batches differ in size; on ranks the batch is cut elsewhere, so the "
        "mean of these means differs",
        facts=("samples per micro-batch: {micro sizes}",),
        fix="divide by one count of samples over all micro-batches of the step and "
        "all ranks",
        fixes=lambda _: [(CountMicroBatches(countable=SAMPLES),)],
        code=_CODE_OF_STEP,
        on_trial=True,
    ),
    ("one term", "1/W", "sum"): Row(
        slug=SUM,
        summary="one term of the loss is a sum over the shard's samples, another is a "
        "mean, and DDP divides the gradients of both by {W}: the sum has 1/{W} of its "
        "weight",
        facts=(
            "{ratios}",
            "repeating the batch halves the gradient of a mean and keeps that of a "
            "sum, which separates the two: on the ranks the mean's part is {W} times "
            "the single-process one, the sum's part equals it",
        ),
        fix="take the mean in every term, or multiply the summed term by the world size",
        fixes=lambda case: [loss.global_loss_fix(case)],
        code=f"{WORLD}loss = mean_term + world * summed_term",
        rests_on=lambda _: True,
    ),
    ("one term", "1/W", "in the model"): Row(
        slug=SUM,
        summary="the loss is a sum over the shard's samples plus a term without data, "
        "and DDP divides the summed gradients by {W}: the gradient of the data term is "
        "1/{W} of the single-process one",
        facts=(
            "the model returns its loss, and no module's output carries its gradient: "
            "parameters get the gradients of both terms together",
            "when the data term is multiplied by {W}, and the rest is not, the "
            "gradients equal the single-process gradients",
        ),
        fix="take the mean, or multiply the summed term by the world size",
        fixes=lambda case: [
            (ScaleLoss(factor=case.world_size), ScaleTerms(factor=1 / case.world_size))
        ],
        code=f"{WORLD}loss = world * summed_term + penalty",
        on_trial=True,
    ),
    ("whole loss", "1/W", "sum"): Row(
        slug=SUM,
        summary="the loss is a sum over the shard's samples, and DDP divides the summed "
        "gradients by {W}: the gradient of the samples is 1/{W} of the single-process "
        "one",
        facts=("{ratios}", "{growth}: the loss grows with the batch"),
        fix="take the mean, or multiply the summed loss by the world size",
        fixes=lambda case: loss.scalings(case, case.world_size),
        code=f"{WORLD}loss = world * {{sum}}",
        rests_on=_is_whole,
    ),
    ("whole loss", "W", ""): _TIMES_W,
    ("after backward", "W", ""): replace(
        _TIMES_W,
        summary="after backward the step multiplies the gradients by {W}, but DDP has "
        "averaged those of means: every gradient is {W} times the single-process one",
        facts=_AFTER,
        code="optimizer.step()  # without parameter.grad *= world_size",
    ),
    ("some parameters", "W", "loss"): _PARTLY_TIMES_W,
    ("some parameters", "W", "backward"): replace(
        _PARTLY_TIMES_W,
        summary="the backward multiplies the gradients of some parameters by {W}, for "
        "example in a hook or an autograd function, but DDP averages the per-rank "
        "gradients",
        fix="remove the factor",
        code="return grad * factor  # without * world_size",
    ),
    ("custom backward", "W", ""): replace(
        _ADDED,
        slug=DOUBLE,
        summary="a custom backward adds the gradient of a mean over the shard and "
        "multiplies it by {W}: that term of the loss has {W} times its weight",
        fix="remove the factor from the gradient that the autograd function adds",
        fixes=lambda case: _added_gradient(1 / case.world_size),
        code="return grad, torch.ones_like(aux)  # without * world_size",
    ),
    ("whole loss", "0/0", ""): Row(
        slug=EMPTY,
        summary="a shard holds no valid item, so its mean is 0/0",
        facts=(
            "of {W} ranks, the loss is NaN or has no gradient on rank {empty}",
            "per-rank losses: {losses}",
        ),
        fix="divide by the count of all ranks, clamped after the all-reduce",
        fixes=lambda case: [loss.global_loss_fix(case)],
        code=f"world = 1\n{_IN_ALL}\nloss = world * local_sum / n.clamp(min=1)",
        rests_on=lambda case: (
            bool(factors.undefined_ranks(case)) and _counts_its_own(case)
        ),
    ),
    ("whole loss", "N/n", "shard"): Row(
        slug=UNEVEN,
        summary="the loss is a mean over the shard, the shards differ in size, and DDP "
        "gives all of them the same weight",
        facts=(
            "{ratios}",
            "the factors are N / n_r with n_r the shard size: {parts}",
        ),
        fix="use equal shards (drop_last), or weight each rank's loss by its share of "
        "the samples",
        fixes=lambda _: [(CountLoss(countable=SAMPLES),)],
        code=f"world, n = 1, torch.tensor(float({{size}}))\n{_IN_ALL}\n"
        "loss = loss * world * {size} / n",
    ),
    ("after backward", "N/n", ""): replace(_BY_COUNT_LATE, slug=UNEVEN),
    ("whole loss", "N/n", "step"): Row(
        slug=UNEVEN,
        summary="the training step distributes the samples again, the loss is a mean "
        "over a rank's part, the parts differ in size, and DDP gives all of them the "
        "same weight",
        facts=(
            "the ranks train on all samples of the single-process run, each on one "
            "rank: {parts}",
            "when each rank's loss is weighted by its share of the samples, the ranks "
            "train as the single-process run does",
        ),
        fix="weight each rank's loss by its share of the samples",
        fixes=lambda _: [(Switch.LOADER_UNPADDED,)],
        code=f"world, n = 1, torch.tensor(float(len(part)))\n{_IN_ALL}\n"
        "loss = loss * world * len(part) / n",
        on_trial=True,
    ),
    ("whole loss", "N/n_r", ""): _BY_COUNT,
    ("after backward", "N/n_r", ""): replace(_BY_COUNT_LATE, slug=COUNT),
    ("whole loss", "other", "exchanged"): Row(
        slug=COUNT,
        summary="the loss divides by a number that ranks exchange, and the result is "
        "not the number of the global batch",
        facts=("{ratios}", "{outputs}"),
        fix="all-reduce the exact count over all ranks, and multiply by the world size",
        fixes=lambda case: [loss.global_loss_fix(case)],
        evidence=loss.ratio_evidence,
        on_trial=True,
        last_resort=1,
    ),
    ("whole loss", "other", "own"): _BY_COUNTS,
    ("whole loss", "other", "step"): replace(
        _BY_COUNTS,
        fixes=_without_factor,
        code="",  # the step multiplies as well
    ),
    ("all parameters", "other", ""): replace(
        _BY_COUNTS,
        facts=("one factor per rank gives the single-process gradient",),
        fixes=_all_samples,
        on_trial=True,
        last_resort=1,
    ),
}


def _outputs(case: Case) -> str:
    if case.couplings.count(case.close):
        return (
            "changing the outputs of some samples multiplies the gradient at the "
            "others by one factor, in jumps: the loss divides by a count that depends "
            "on the outputs"
        )
    return (
        "changing the outputs of some samples does not change the gradient at the "
        "others: only the divisor of the loss differs"
    )


def _mean(case: Case) -> str:
    if not loss.is_sum(case):
        return f"in the single-process run the loss is a mean: {loss.growth_fact(case)}"
    count = loss.constant_count(case)
    return f"the loss is divided by {count}, a constant: the number in the global batch"


def _counts(case: Case) -> str:
    assert case.probed is not None
    name = loss.counted_by(case) or ""
    told = listed(rank.counts[name] for rank in case.probed.ranks)
    return f"{told} on the ranks, {number(case.probed.reference.counts[name])} in all"


def _micro_count(case: Case) -> str:
    count = factors.divisor(case)
    if count is None:
        return "a count of its own"
    micros = [factors.micro(case, place) for place in case.micro_ratios()]
    told = listed(micro.counts[count.countable] for micro in micros)
    return f"its own number of `{count.countable}` ({told})"


def _micro_sizes(case: Case) -> str:
    assert case.probed is not None
    ours = listed(m.size for m in case.probed.reference.micros)
    return f"{ours} in the single-process run, {listed(factors.sizes(case))} on a rank"


WORDS: dict[str, Callable[[Case], str]] = {
    "W": lambda case: str(case.world_size),
    "1/W": lambda case: number(1 / case.world_size),
    "after": lambda case: listed(factors.after_backward(case)),
    "collectives": lambda case: str(case.loss_collectives),
    "count": lambda case: loss.counted_by(case) or "",
    "counts": _counts,
    "empty": lambda case: names(map(str, factors.empty_ranks(case))),
    "factor": lambda case: number(common_factor(case) or 1.0),
    "growth": loss.growth_fact,
    "k": lambda case: str(factors.numbers(case)[0]),
    "k of a rank": lambda case: str(factors.numbers(case)[1]),
    "losses": lambda case: listed(
        math.nan if value is None else value for value in case.rank_losses()
    ),
    "mean": _mean,
    "micro count": _micro_count,
    "micro ratios": lambda case: listed(r for r, _ in case.micro_ratios().values()),
    "micro sizes": _micro_sizes,
    "outputs": _outputs,
    "parts": lambda case: listed(factors.parts(case)),
    "ratio": lambda case: number(case.uniform_ratio or 0.0),
    "ratios": loss.ratio_fact,
    "size": lambda case: "samples" if case.facts.get("collates") else "len(target)",
    "sum": lambda case: (
        "summed_term + penalty" if case.direct() else "loss  # or reduction='mean'"
    ),
    "term": lambda case: "term" if case.is_part else "loss",
    "wrong": lambda case: names(case.mismatched("gradients", 0)),
}


class _Words(dict[str, str]):
    """The words of a case, each made when a sentence has it."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.case = case

    def __missing__(self, word: str) -> str:
        return WORDS[word](self.case)


@dataclass(slots=True)
class FactorRule:
    """The rows of one slug, as a rule of the registry."""

    SLUG: str
    LINK: str = "loss"

    def detect(self, case: Case) -> Proposal | None:
        """Proposes what the first row says that fits."""
        found = factors.measured(case)
        rows = [r for at, r in TABLE.items() if at in found and r.slug == self.SLUG]
        return _first(case, rows)


def _first(case: Case, rows: Sequence[Row]) -> Proposal | None:
    for place, row in enumerate(rows):
        if attempts := row.fixes(case):
            other = _first(case, rows[place + 1 :]) if row.falls_back else None
            return tried(replaced(proposal(case, row), fallback=other), attempts)
    return None


def proposal(case: Case, row: Row) -> Proposal:
    """Returns what a row says of a case, without a run to prove it."""
    words = _Words(case)
    shown = row.evidence or (None if row.on_trial else loss.ratio_evidence)
    return Proposal(
        slug=row.slug,
        link="loss",
        summary=row.summary.format_map(words),
        facts=tuple(fact.format_map(words) for fact in row.facts),
        fix=row.fix,
        code=row.code.format_map(words),
        code_rests_on="its factor" if row.rests_on and row.rests_on(case) else "",
        safe=row.slug != ACCUM,
        evidence=shown(case) if shown else {},
        speculative=row.on_trial,
        last_resort=row.last_resort,
    )


def detect_hidden(case: Case) -> Proposal | None:
    """Returns loss/double-world-scale for a mean's factor W in a loss with a group."""
    world, twice = case.world_size, loss.doubled(case)
    ratios = [r.group_factor for r in case.probed_ranks]
    if not ratios or any(f is None or abs(f / world - 1) > case.close for f in ratios):
        return None
    if twice is None or loss.is_sum(case) or case.loss_collectives:
        return None  # a sum, or one over a count of all samples, needs it
    facts = (
        f"the loss's gradient is {world} times its value without a process group; "
        + loss.growth_fact(case),
        "no run separates this cause: when the loss gets all samples, it has no "
        "process group",
    )
    return replaced(proposal(case, TABLE["whole loss", "W", ""]), facts=facts)


loss_accum_normalizer = FactorRule(ACCUM)
loss_double_world_scale = FactorRule(DOUBLE)
loss_empty_shard = FactorRule(EMPTY)
loss_local_normalizer = FactorRule(COUNT)
loss_missing_world_scale = FactorRule(MISSING)
loss_sum_reduction = FactorRule(SUM)
loss_uneven_shard = FactorRule(UNEVEN)
