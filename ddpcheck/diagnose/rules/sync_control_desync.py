"""Detects sync/control-desync."""

from __future__ import annotations

from ddpcheck.diagnose.facts.case import Case, Proposal
from ddpcheck.diagnose.facts.events import optimizer_runs_backwards, rewritten
from ddpcheck.diagnose.facts.experiments import GIVEN_GRADIENTS, with_fixes
from ddpcheck.diagnose.facts.external_state import before_gradients
from ddpcheck.diagnose.facts.faults import backwards_of_ranks, skipped_in
from ddpcheck.diagnose.facts.text import in_group, listed, names
from ddpcheck.diagnose.facts.unlike_numbers import other_numbers
from ddpcheck.diagnose.facts.unused import unused_parameters
from ddpcheck.diagnose.facts.updates_apart import (
    at_other_times,
    decided_by,
    fact_of_wrong,
    left_out_by_some,
    parted_before,
    rewritten_alone,
    step_of_update,
    wrong_with_right_gradients,
)
from ddpcheck.diagnose.proposal import replaced
from ddpcheck.run.intervention import Interventions, Substitute, Switch

SLUG = "sync/control-desync"
LINK = "update"
_FIX = "all-reduce the number that decides, so that all ranks make the same decision"
_TOGETHER = with_fixes(
    "the single-process gradients, and numbers read from tensors as the mean over ranks",
    *GIVEN_GRADIENTS.fixes,
    Switch.MEAN_OF_NUMBERS,
)
_CODE = in_group("dist.all_reduce(metric)", "metric /= dist.get_world_size()")


def detect_hidden(case: Case) -> Proposal | None:
    """Returns it if ranks update with right gradients, but not alike."""
    found = wrong_with_right_gradients(case)
    if found is None or found[1] <= case.untrained:
        return None
    if (
        case.result(GIVEN_GRADIENTS).ranks_agree
        or rewritten(case, "before") is not None
    ):
        return None  # else weights differ before the first update
    # Ranks agree, but the mean of their losses need not be the single-process loss.
    together = case.result(_TOGETHER)
    if together.faults or not together.ranks_agree:
        return None
    first, wrong = found
    return _decided(
        "the ranks update their weights with different numbers: each rank decides "
        "by itself",
        fact_of_wrong(first, wrong - case.untrained, "trained"),
        "when every number read from a tensor is the mean over ranks, they agree",
    )


def _decided(summary: str, *facts: str) -> Proposal:
    return Proposal(summary=summary, facts=facts, fix=_FIX, code=_CODE)


def detect(case: Case) -> Proposal | None:
    """Proposes it if ranks decide differently: by numbers that they read or keep."""
    found, kept = _detect_unequal_updates(case), _detect_kept_numbers(case)
    if found is None or kept is None:
        return found or kept
    # Kept numbers have names: they are more precise than the other fallbacks.
    return replaced(found, fallback=replaced(kept, fallback=found.fallback))


def _detect_kept_numbers(case: Case) -> Proposal | None:
    """Proposes it as speculative for a few numbers that are kept outside the model."""
    found = before_gradients(case)
    if found is None or found.has_weights or not found.decides:
        return None
    return Proposal(
        summary="numbers that training code keeps outside the model (a weight of a "
        "loss, a scale, a threshold) are computed from the local shard, and later "
        "steps use them",
        facts=found.facts,
        fix=f"all-reduce the values that determine {names(_listed(found.fixes))}, "
        "then make the same update on all ranks",
        fixes=found.fixes,
        speculative=True,
        last_resort=1,
    )


def _listed(fixes: Interventions) -> list[str]:
    """Returns the expressions of what these interventions set."""
    return [name for fix in fixes for name in fix.listed]


def _detect_unequal_updates(case: Case) -> Proposal | None:
    """Proposes it if trained weights differ between ranks after equal gradients."""
    first = case.first_broken("gradients")
    if optimizer_runs_backwards(case):
        numbers, closures = _of_all_ranks(case, first), _of_closures(case)
        return replaced(numbers, fallback=closures) if numbers else closures
    step = step_of_update(case)
    decided = None if step is None else decided_by(case, step)
    if parted_before(case, step):
        return None
    if step is not None and decided is None and case.facts["draws"]:
        return _of_draws(step)
    if step is not None and (first is None or first > step):
        return _of_update(case, step, decided)
    if (others := _of_all_ranks(case, first) or _of_some_ranks(case)) is not None:
        return others
    other = _of_a_decision(case, first) or _of_the_rank(case)
    at_update = _at_other_times(case, first) or _of_rewritten(case, first)
    other = replaced(at_update, fallback=other) if at_update else other
    within = _within_a_step(case, first)
    return replaced(within, fallback=other) if within else other


def _puts_gradients_away(case: Case) -> bool:
    """Returns whether only one side has some gradient at the first update.

    A step that leaves out a part of the model sets its gradients to None.
    """
    rows = [t for q in case.step_quantity("gradients", 0) for t in q.tensors]
    return any(t.why is not None and t.why.startswith("missing") for t in rows)


def _of_update(case: Case, step: int, decided: str | None) -> Proposal:
    """Returns the proposal for an update that makes the ranks differ."""
    found = case.mismatched("weights", step)
    proposal = replaced(
        _decided(
            "the ranks have equal gradients but different updates: a learning "
            "rate, a skip or a stop is decided from per-rank numbers",
            f"gradients are equal up to step {step + 1}; after its update {len(found)} "
            f"parameters differ between ranks: {names(found)}",
        ),
        fixes=(Substitute(boundary="schedule"),)
        if decided == "numbers"
        else (Switch.MEAN_OF_NUMBERS,),
        needs_no_proof=decided == "updates",
        speculative=decided is None,
    )
    if decided == "numbers":
        # What decides on the learning rate may decide on a loss scale as well.
        other = replaced(proposal, fixes=(Switch.MEAN_OF_NUMBERS,))
        return replaced(proposal, fallback=other)
    if decided is not None:
        return proposal
    return replaced(proposal, fallback=_of_the_rank(case))


def _of_all_ranks(case: Case, first: int | None) -> Proposal | None:
    """Returns the proposal for numbers that are equal on ranks, but not single-process.

    `first`: the step in which gradients differ first, None for none.
    """
    step = case.first_broken("weights")
    if step is None or (first is not None and first <= step) or case.run.faults:
        return None
    told = next(other_numbers(case.outcome, case.rtol), None)
    if told is None or told.step > step:
        return None
    found = Proposal(
        summary="gradients equal the single-process gradients, and every rank "
        f"updates its weights with other numbers: {told.name} differs from its "
        "value in the single-process run",
        facts=(f"{told.name} {told.text}",),
        fix="step a scheduler once per update, whatever the number of ranks; if "
        f"{told.name} is scaled with the ranks on purpose, accept this finding",
        fixes=(Substitute(boundary="schedule"),),
    )
    if not told.is_grouped:
        return found
    return replaced(
        found,
        fix="assign parameters to the optimizer's groups by their names without "
        "the wrapper",
        code="named = dict(model.named_parameters())\n"
        'bare = {n.removeprefix("module."): p for n, p in named.items()}',
        code_rests_on=(
            "the optimizer's groups hold other parameters on ranks than "
            "in the single-process run"
        ),
    )


def _within_a_step(case: Case, first: int | None) -> Proposal | None:
    """Returns the proposal, as speculative, for an update that makes the next one differ.

    `first`: the step in which gradients differ first, None for none.
    """
    told = next(other_numbers(case.outcome, case.rtol), None)
    if first is None or told is None or told.step > first or case.run.faults:
        return None
    updates = sum(at == first for at, _ in case.facts["schedule"])
    if updates < 2:  # noqa: PLR2004
        return None
    found = _decided(
        f"a step has {updates} updates, and the ranks make the later ones with "
        f"other numbers than the single-process run: {told.name} is decided from "
        "per-rank numbers",
        f"{told.name} {told.text}",
    )
    return replaced(found, fixes=(Substitute(boundary="schedule"),), speculative=True)


def _of_some_ranks(case: Case) -> Proposal | None:
    """Returns the proposal for an update that some ranks skip."""
    fact = left_out_by_some(case)
    if fact is None:
        return None
    return Proposal(
        summary="some ranks skip an update that the others make: the skip is "
        "decided from per-rank numbers",
        facts=(fact,),
        fix=_FIX,
        code=_CODE,
        fixes=(Switch.MEAN_OF_NUMBERS,),
        speculative=True,
    )


def _at_other_times(case: Case, first: int | None) -> Proposal | None:
    """Returns the proposal for updates that all ranks make in other steps."""
    fact = at_other_times(case, first)
    if fact is None:
        return None
    return Proposal(
        summary="the ranks agree, but update their weights in other steps than the "
        "single-process run: the size of the shard, or the number of ranks, "
        "decides how often",
        facts=(
            fact,
            "when the step has the samples of all ranks, the number of updates is "
            "equal",
        ),
        fix="decide from the samples of all ranks",
        fixes=(Substitute(boundary="batches"),),
        speculative=True,
        last_resort=1,
    )


def _of_rewritten(case: Case, first: int | None) -> Proposal | None:
    """Returns the proposal, as speculative, for gradients that are changed after backward."""
    fact = rewritten_alone(case, first)
    if fact is None:
        return None
    return Proposal(
        summary="the ranks have equal gradients after backward, but each changes "
        "them before the update, using its local shard",
        facts=(
            fact,
            "when the update uses the gradients of backward unchanged, in both "
            "runs, the runs are equal",
        ),
        fix="all-reduce the values that change the gradients",
        fixes=(Switch.GRADIENTS_AS_LEFT,),
        safe=False,
        speculative=True,
        last_resort=1,
    )


def _of_a_decision(case: Case, first: int | None) -> Proposal | None:
    """Returns the proposal for numbers that decide on the loss of a later step.

    Or on the loss of this step, if its gradients are set to None. `first`: the step in
    which gradients differ first, None for none.
    """
    if first is None or case.run.faults:
        return None
    if not first and not _puts_gradients_away(case):
        return None
    found = _decided(
        "each rank decides from its own numbers which loss to use, how often to "
        "train, or on which data",
        f"gradients differ from step {first + 1} on; when every number read from a "
        "tensor is the mean over ranks, they agree",
    )
    return replaced(
        found, fixes=(Switch.MEAN_OF_NUMBERS,), speculative=True, last_resort=1
    )


def _of_the_rank(case: Case) -> Proposal | None:
    """Returns the proposal for what a step does on some ranks, by rank number."""
    asked = max((f.get("asks_rank", 0) for f in case.ranks), default=0)
    if not asked or case.run.faults or unused_parameters(case).somewhere:
        return None
    found = Proposal(
        summary="the training step depends on the rank number, and that affects "
        "the gradients or the weights",
        facts=(
            f"calls of get_rank: {asked}; when get_rank returns 0 everywhere, "
            "the runs are equal",
        ),
        fix="change the model, its mode and its data on all ranks; only logs and "
        "files belong to rank 0",
        fixes=(Switch.FIRST_RANK,),
        speculative=True,
        last_resort=2,
    )
    # The single-process run does not do what rank 0 alone does.
    none = (
        f"calls of get_rank: {asked}; when get_rank returns 0 on no rank, the "
        "runs are equal"
    )
    other = replaced(found, facts=(none,), fixes=(Switch.SECOND_RANK,))
    return replaced(found, fallback=other)


def _of_closures(case: Case) -> Proposal:
    """Returns the proposal for an optimizer that chooses its number of steps."""
    waits = skipped_in(case) is not None
    calls = backwards_of_ranks(case)
    if not calls:
        calls = [f.get("events", "").count("B") for f in case.ranks]
    return Proposal(
        summary="the optimizer gets each rank's own loss: ranks take different "
        "steps, or call the closure a different number of times",
        facts=(f"backwards started by its closure, per rank: {listed(calls)}",),
        fix="return the mean of the losses over ranks from the closure",
        code="value = loss.detach().clone()\n"
        + in_group("dist.all_reduce(value)", "value /= dist.get_world_size()")
        + "\nreturn value",
        fixes=(Switch.MEAN_OF_NUMBERS,),
        needs_no_proof=waits,
        speculative=not waits,
    )


def _of_draws(step: int) -> Proposal:
    """Returns the proposal for noise in the update, which makes ranks differ."""
    return Proposal(
        summary="every rank draws its own random numbers between the all-reduce of "
        "the gradients and the end of the update, so weights drift apart",
        facts=(
            f"after the update of step {step + 1} trained weights differ between ranks; "
            "with the same random numbers on all ranks they do not",
        ),
        fix="draw from a generator with the same seed on all ranks, or broadcast "
        "the numbers",
        noise="sample",
        speculative=True,
    )
