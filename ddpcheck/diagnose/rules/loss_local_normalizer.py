"""Detects loss/local-normalizer."""

from __future__ import annotations

from ddpcheck.diagnose.facts.case import Case, Proposal
from ddpcheck.diagnose.facts.events import common_factor
from ddpcheck.diagnose.facts.external_state import own_samples
from ddpcheck.diagnose.facts.loss import (
    counted_by,
    differs_with_equal_counts,
    global_loss_fix,
    global_loss_of_other_rows,
    is_divided_by_counts,
    ratio_evidence,
    ratio_fact,
    whole_model_fix,
    whole_step_fix,
)
from ddpcheck.diagnose.facts.text import listed, number
from ddpcheck.diagnose.proposal import replaced
from ddpcheck.run.intervention import CountLoss, ScaleLoss, Switch
from ddpcheck.run.spec import SAMPLES

SLUG = "loss/local-normalizer"
LINK = "loss"


def detect(case: Case) -> Proposal | None:
    """Proposes it for one ratio per rank, or several, in a loss without coupling."""
    if not case.has_cuts:
        return _detect_without_output(case)
    if case.loss_is_sound or case.losses_replicate:
        return None
    if case.couples is not False or case.mixes_a_sum:
        return None
    if case.uniform_ratio is not None:
        return _of_a_sum(case)
    return _of_counts(case)


def _of_counts(case: Case) -> Proposal | None:
    """Returns the proposal for factors that follow a count, or several counts."""
    name = counted_by(case)
    if name == SAMPLES:
        return None  # loss/uneven-shard
    if own_samples(case) and case.rank_ratios is None:
        return None  # loss/batch-coupled
    if name is not None:
        return _proposal(case, name)
    if case.loss_asks_others and differs_with_equal_counts(case):
        # The divisor may differ, and something else may be wrong.
        return _of_an_exchange(case)
    return _proposal(case)


def _detect_without_output(case: Case) -> Proposal | None:
    """Proposes it on trial for a loss that only the parameters' gradients show.

    No module's output shows it, or all output rows are no samples: tokens without
    padding.
    """
    if common_factor(case) is not None or not is_divided_by_counts(case):
        return None
    fixes, name = whole_model_fix(case), counted_by(case)
    if not fixes and name not in (None, SAMPLES) and case.forward_is_sound:
        return replaced(_proposal(case, name), fallback=None)
    fixes = fixes or global_loss_of_other_rows(case) or whole_step_fix(case)
    if not fixes:
        return None
    fact = (
        "one factor per rank turns the ranks' gradients into the single-process "
        "gradient"
    )
    return replaced(
        _proposal(case),
        facts=(fact,),
        fixes=fixes,
        evidence={},
        fallback=None,
        speculative=True,
        last_resort=1,
    )


def _of_a_sum(case: Case) -> Proposal | None:
    """Returns the proposal for (S_r + a) / (n_r + b): one factor for all, no power of W."""
    ratio, world = case.uniform_ratio, case.world_size
    assert ratio is not None
    known = any(abs(ratio - world**k) <= 1e-3 * world**k for k in (0, 1, 2))
    if known or ratio <= 0:
        return None
    if case.loss_collectives:
        return _of_an_exchange(case)
    return None if case.facts["asks_distributed"] else _proposal(case)


def _of_an_exchange(case: Case) -> Proposal:
    """Returns the proposal, on trial, for a count that is exchanged but wrong."""
    return replaced(
        _proposal(case),
        summary="the loss divides by a number that ranks exchange, and the result "
        "is not the number of the global batch",
        fix="all-reduce the exact count over all ranks, and multiply by the world size",
        code="",
        fallback=None,
        speculative=True,
        last_resort=1,
    )


def _fact_of_outputs(case: Case) -> str:
    """Returns the effect of other samples' outputs on a gradient, in words."""
    if case.couplings.count(case.close):
        return (
            "changing the outputs of some samples multiplies the gradient at the "
            "others by one factor, in jumps: the loss divides by a count that "
            "depends on the outputs"
        )
    return (
        "changing the outputs of some samples does not change the gradient at the "
        "others: only the divisor of the loss differs"
    )


def _proposal(case: Case, name: str | None = None) -> Proposal:
    """Returns the proposal; `name` is the count that the loss is divided by, if known."""
    facts = [_fact_of_outputs(case)]
    fixes = global_loss_fix(case)
    if name is not None:
        assert case.probed is not None
        counts = [r.counts[name] for r in case.probed.ranks]
        total = case.probed.reference.counts[name]
        facts = [
            f"the factors are N / n_r with n_r the count of `{name}`: "
            f"{listed(counts)} on the ranks, {number(total)} in all"
        ]
        fixes = (CountLoss(countable=name),)
    what = (
        f"the number of `{name}` in the shard"
        if name
        else "counts or weights of the shard"
    )
    found = Proposal(
        slug=SLUG,
        link=LINK,
        summary=f"the loss is divided by {what}, which differs between ranks, and "
        "DDP averages the quotients",
        facts=(ratio_fact(case), *facts),
        fix="divide by the count of all ranks and multiply by the world size"
        if name
        else "compute counts, and weights derived from them, over the samples of all "
        "ranks; divide by those and multiply by the world size",
        code="world, n = 1, count.clone()\n"
        "if dist.is_initialized():  # one process has no group\n"
        "    world = dist.get_world_size()\n"
        "    dist.all_reduce(n)\n"
        f"{'term' if case.is_part else 'loss'} = world * local_sum / n",
        code_rests_on=_rests_on(case, name),
        fixes=fixes,
        evidence=ratio_evidence(case),
    )
    if name:  # another count may have had the same shares in the first step
        return replaced(found, fallback=_proposal(case))
    wide = whole_model_fix(case)
    other = replaced(found, fixes=wide) if wide else _where_the_step_scales(case, found)
    return replaced(found, fallback=other)


def _rests_on(case: Case, name: str | None) -> str:
    """Returns the evidence that the loss is divided by a per-rank count.

    A sum over ranks is the right divisor for a count, but not for a maximum.
    """
    if case.loss_asks_others:
        return ""
    if name is None and not case.couplings.count(case.close):
        return ""
    return "a count differs between ranks, and the loss calls no collective"


def _where_the_step_scales(case: Case, found: Proposal) -> Proposal | None:
    """Returns the proposal for a step that multiplies by the world size itself.

    Given the global loss it still does so. If counts are equal the factor is right and
    belongs to a sum; or the divisor is more than a count.
    """
    facts = case.facts
    if not (facts["has_train_step"] and facts["asks_distributed"]):
        return None
    found = replaced(found, code="")  # which multiplies as well
    if differs_with_equal_counts(case):
        return replaced(found, fixes=(Switch.SUM_OF_NUMBERS,))
    scale = ScaleLoss(factor=1 / case.world_size)
    return replaced(found, fixes=(*found.fixes, scale))
