"""Fixes that are tried if nothing else explains a run: they would fix many causes."""

from __future__ import annotations

from ddpcheck.diagnose.facts.case import Case, Proposal
from ddpcheck.diagnose.rules import loss_batch_coupled
from ddpcheck.diagnose.search.causes import Cause
from ddpcheck.diagnose.search.trials import Trials
from ddpcheck.run.intervention import Switch
from ddpcheck.run.session import assemble


def cause(case: Case, causes: list[Cause], trials: Trials) -> Cause | None:
    """Returns a cause whose fix, with those of `causes`, makes the run equal.

    Args:
        case: what is left with the fixes of `causes`.
        causes: found so far.
        trials: runs the fix.
    """
    taken = [found.proposal for found in causes]
    proposal = _statistics(case)
    if proposal is None or proposal.slug in {p.slug for p in taken}:
        return None
    after = trials.of([proposal], taken)[proposal.slug]
    if after > 1:
        return None
    before = assemble.worst_excess(case.run)
    return Cause(proposal, before=before, after=after, verified=True)


def _statistics(case: Case) -> Proposal | None:
    """Returns the proposal for numbers that a step computes from its samples and uses.

    They carry no gradient, so no gradient at the outputs shows them: for example a mean
    that a penalty on slopes is compared with.
    """
    first = case.first_broken("gradients")
    if not case.facts["has_train_step"] or first is None or case.run.faults:
        return None
    return Proposal(
        slug=loss_batch_coupled.SLUG,
        link=loss_batch_coupled.LINK,
        summary="the loss uses numbers computed from the local shard: a mean, a "
        "deviation or an extreme, taken without gradient",
        facts=(
            f"gradients differ from step {first + 1} on; when means, deviations and "
            "extremes of samples, taken without gradient, are those of all ranks, "
            "they do not",
        ),
        fix=(
            "compute them from the samples of all ranks: all-reduce a sum and a count"
        ),
        fixes=(Switch.STATISTICS_OF_ALL_RANKS,),
    )
