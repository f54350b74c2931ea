"""Causes: what rules propose, and the result of a run with a fix."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from ddpcheck.diagnose.facts import rows
from ddpcheck.diagnose.facts.case import Case, Proposal
from ddpcheck.diagnose.facts.events import input_diff
from ddpcheck.diagnose.facts.experiments import Experiment, answered
from ddpcheck.diagnose.proposal import replaced
from ddpcheck.diagnose.registry import RULES, Rule, asked
from ddpcheck.diagnose.search import components
from ddpcheck.report.data import Control, Run
from ddpcheck.run import intervention
from ddpcheck.run.intervention import (
    GlobalModule,
    Intervention,
    Scale,
    Substitute,
    SyncBatchNorm,
)
from ddpcheck.run.session import assemble

_PROBED = ("data", "forward", "loss")  # measured anew with a fix in force
_MAX_CONTROLS = 6
_BRANCH = "graph/rank-dependent-branch"
_LAST = 2  # Proposal.last_resort of proposals that are tried if there are no others
_EXACT = 1e-6  # of a run's excess, if only rounding was changed
_SAME = 0.01  # powers this close: it is one
_ONE_SIZE = 2.0  # excesses within this factor: what the fix changed is not the cause


@dataclass(slots=True)
class Cause:
    """A proposal that was taken up, and what its runs said."""

    proposal: Proposal
    before: float = math.inf
    after: float = math.inf
    verified: bool | None = None
    where: str | None = None
    controls: list[Control] = field(default_factory=list)


def is_weak(causes: list[Cause]) -> bool:
    """Returns whether the only evidence is that the loss of all rows is right."""
    told = [cause.proposal for cause in causes]
    return bool(told) and all(p.last_resort and p.link == "loss" for p in told)


def proposed(case: Case, make: Callable[[Experiment], Run]) -> list[Proposal]:
    """Returns what all rules propose, in the order of the chain.

    `make` runs the experiments that rules ask for.
    """
    return answered(lambda: _proposed(case), case.experiments, make)


def _proposed(case: Case) -> list[Proposal]:
    every = _detect(case, RULES)
    found = components.separated(case, every, _of_the_loss)
    if case.loss_is_global:
        found = [p for p in found if p.link != "loss"]
    is_made = case.facts["has_train_step"] and input_diff(case) > case.close
    if is_made and rows.first_wrong(case) is None:
        # The step makes other samples and targets on ranks: then the loss on the
        # single-process outputs says little about the loss.
        found = [
            replaced(p, speculative=True) if p.link == "loss" else p for p in found
        ]
    if any(p.needs_no_proof and p.link == "data" for p in found):
        # A fix that gives a rank all samples repairs any choice of them.
        found = [p for p in found if not p.is_wide]
    if any(p.needs_no_proof for p in found):
        found = [p for p in found if p.last_resort < _LAST]
    if case.run.faults and any(p.slug == _BRANCH for p in found):
        # With all samples on every rank, ranks wait for no other rank's parameters.
        found = [p for p in found if not p.is_wide]
    firm = {p.slug for p in found if not p.speculative}
    found = [p for p in found if not (p.speculative and p.slug in firm)]
    return sorted(found, key=lambda p: p.last_resort)


def _detect(case: Case, rules: Iterable[Rule]) -> list[Proposal]:
    return [p for rule in rules if (p := asked(rule, case))]


def _of_the_loss(case: Case) -> list[Proposal]:
    return _detect(case, [rule for rule in RULES if rule.LINK == "loss"])


def verified(proposal: Proposal, before: float, tested: dict[str, float]) -> Cause:
    """Returns the cause that a run proves; others that were tried are its controls.

    Args:
        proposal: whose fix mends the run.
        before: what the run is off by without it.
        tested: what is left, by slug.
    """
    others = ((s, x) for s, x in tested.items() if s != proposal.slug)
    controls = [Control(slug=s, excess_after=x) for s, x in others]
    return Cause(
        proposal,
        before=before,
        after=tested[proposal.slug],
        verified=True,
        controls=controls[:_MAX_CONTROLS],
    )


def mended(cause: Cause, before: Case, after: Case, proposals: list[Proposal]) -> bool:
    """Returns whether a fix repaired its own link, although the run still differs.

    Its rule no longer finds anything, and not because evidence is missing. If rules of
    later links find the same with the fix, the run must differ by another amount.
    """
    if cause.verified:
        return True
    # A run with noise that cannot follow the sample says nothing.
    is_nothing = after.run.verdict == "not-checked"
    is_lost = after.probed is None and before.probed is not None
    if is_nothing or is_lost or (after.run.faults and not before.run.faults):
        return False
    if not _differ(before, after):
        return False  # silent because the fix is in force, not because it helped
    if cause.proposal.slug not in {p.slug for p in proposals}:
        return True
    if cause.proposal.link in _PROBED:
        return False
    was, left = assemble.worst_excess(before.run), assemble.worst_excess(after.run)
    return not is_of_one_size(was, left)


def is_of_one_size(was: float, left: float) -> bool:
    """Returns whether a fix left a run's excess at about the same size."""
    return was == left or was / _ONE_SIZE < left < was * _ONE_SIZE


def _differ(case: Case, other: Case) -> bool:
    """Returns whether any tensor of two runs differs by another amount on any rank.

    A fix may change what is not the worst, as of one rank alone.
    """
    if case.run.faults or other.run.faults:
        return True
    mine, theirs = (
        assemble.excesses_of_ranks(each.outcome, each.run) for each in (case, other)
    )
    return any(_changed(mine[k], theirs[k]) for k in mine.keys() & theirs.keys())


def _changed(excess: float, other: float) -> bool:
    if (excess > 1) != (other > 1):
        return True
    return not math.isclose(excess, other, rel_tol=_EXACT, abs_tol=1.0)


def covered(cause: Cause, others: list[Cause]) -> bool:
    """Returns whether another fix gives all rows to a module around this one's modules.

    Then an error inside disappears with it, but was there. A fix that gives all samples
    to a rank covers any choice of them.
    """
    if cause.proposal.needs_no_proof and cause.proposal.link == "data":
        return any(other.proposal.is_wide for other in others)
    mine = _shown(cause)
    return bool(mine) and any(
        all(
            name != outer and (not outer or name.startswith(f"{outer}."))
            for name in mine
        )
        for other in others
        for outer in _shown(other)
    )


def is_side_effect(
    first: Case, case: Case, taken: list[Proposal], found: Proposal
) -> bool:
    """Returns whether the finding is about buffers that were right without a fix.

    A step that gets the samples of all ranks, and counts or stores what the ranks
    exchange, does so once for each rank.

    Args:
        first: the run as it is.
        case: the run with what is taken up in force.
        taken: the proposals that are taken up.
        found: what mends the rest.
    """
    wrong, before = case.first_broken("buffers"), first.first_broken("buffers")
    return (
        any(p.is_wide for p in taken)
        and all(fix.place == "state" for fix in found.fixes)
        and wrong is not None
        and (before is None or wrong < before)
    )


def joined(cause: Cause, beside: Cause) -> Cause:
    """Returns the cause with a fix that also restores the buffers it made wrong."""
    fixes = (*cause.proposal.fixes, *beside.proposal.fixes)
    proposal = replaced(cause.proposal, fixes=fixes)
    after, verdict = beside.after, beside.verified
    return replace(cause, proposal=proposal, after=after, verified=verdict)


def with_more_evidence(cause: Cause, dropped: list[Cause]) -> Cause:
    """Returns the cause, or the one with more evidence that the same fix proves.

    A fix that was too narrow (a count with the right shares in the first step, by
    chance) falls back on a wider one, whose cause is less precise.
    """
    if not cause.proposal.last_resort:
        return cause
    for other in dropped:
        wider = other.proposal.fallback
        while wider is not None and wider.fixes != cause.proposal.fixes:
            wider = wider.fallback
        if wider is not None and not other.proposal.speculative:
            return replace(cause, proposal=wider)
    return cause


def _shown(cause: Cause) -> list[str]:
    """Returns the modules that get the rows of all ranks by the cause's fix.

    One of the batch norms that are synchronised stands for all.
    """
    fixes = cause.proposal.fixes
    shown = [f.name for f in fixes if isinstance(f, GlobalModule) and f.hides]
    is_sync = intervention.found(fixes, SyncBatchNorm) is not None
    norms = is_sync and cause.proposal.module
    return [*shown, norms] if norms else shown


def second_causes(proposals: list[Proposal], taken: list[Proposal]) -> list[Proposal]:
    """Returns those that can be a second cause.

    If ranks train on other samples than the single-process run, a fix that gives all
    samples to each rank repairs just that.
    """
    if not any(t.needs_no_proof and t.link == "data" for t in taken):
        return proposals
    return [found for p in proposals if (found := _with_own_samples(p))]


def _with_own_samples(proposal: Proposal) -> Proposal | None:
    """Returns the proposal, or the fallback, whose fix leaves each rank its samples."""
    other = proposal.fallback and _with_own_samples(proposal.fallback)
    if Substitute(boundary="batches") in proposal.fixes:
        return other
    return replaced(proposal, fallback=other)


def ends_search(proposal: Proposal) -> bool:
    """Returns whether the proposal ends the search, proven or not.

    Wrong samples are also certain, but their fix shows what else is wrong.
    """
    return not can_run(proposal) or (
        proposal.needs_no_proof and proposal.link != "data"
    )


def can_run(proposal: Proposal) -> bool:
    """Returns whether the proposal has a run that could prove it."""
    return bool(proposal.fixes or proposal.noise or proposal.by_hand)


def scaled_to(fix: Intervention, found_at: int, world_size: int) -> Intervention:
    """Returns a fix for another world size: factors of W follow it."""
    if found_at == world_size or not isinstance(fix, Scale):
        return fix
    power = math.log(fix.factor) / math.log(found_at) if fix.factor > 0 else 0.0
    is_power = round(power) and abs(power - round(power)) <= _SAME
    factor = float(world_size) ** round(power)
    return replace(fix, factor=factor) if is_power else fix
