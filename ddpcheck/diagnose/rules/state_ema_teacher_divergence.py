"""Detects state/ema-teacher-divergence."""

from __future__ import annotations

from ddpcheck.diagnose.facts.buffers import Owners, diverging_buffers
from ddpcheck.diagnose.facts.case import Case, Proposal
from ddpcheck.diagnose.facts.external_state import before_gradients, drawn_weights
from ddpcheck.diagnose.facts.text import names
from ddpcheck.diagnose.facts.updates_apart import (
    fact_of_wrong,
    wrong_with_right_gradients,
)
from ddpcheck.diagnose.proposal import replaced
from ddpcheck.run.intervention import Substitute, Switch

SLUG = "state/ema-teacher-divergence"
LINK = "update"


def detect(case: Case) -> Proposal | None:
    """Proposes it if only untrained parameters differ, and no forward writes them."""
    if any(m.writes_parameters for m in case.modules()):
        return None
    if drawn := drawn_weights(case):
        return _drawn(drawn)
    step, found = _first_differing(case)
    if not found:
        return _detect_buffers(case) or _detect_read_in_step(case)
    if not set(found) <= case.untrained:
        return _detect_read_in_step(case)
    when = f"after step {step + 1}" if step else "after the first step"
    if case.run.ranks_agree:
        return _by_numbers(found, when)
    # Parameters that require gradients and get none are broadcast with trained ones.
    asks = not set(found) <= set(case.facts["untrained"])
    return Proposal(
        summary="weights that no optimizer trains (an average, a teacher) are "
        "updated on some ranks only, or from the local shard",
        facts=(
            f"{when} {len(found)} untrained parameters differ between ranks: "
            f"{names(found)}; all trained parameters are equal",
        ),
        fix="make the same update on all ranks",
        code="update_teacher(teacher, student)  # not under `if rank == 0`"
        if any(f.get("asks_rank") for f in case.ranks)
        else "",
        fixes=(Switch.BROADCAST_AFTER_STEP if asks else Switch.STATE_BROADCAST,),
        fallback=_from_own_data(found, when),
    )


def detect_hidden(case: Case) -> Proposal | None:
    """Returns it if only untrained weights differ where every update is right."""
    found = wrong_with_right_gradients(case)
    if (
        found is None
        or not found[1] <= case.untrained
        or _are_in_the_loss(case, found[1])
    ):
        return None
    return Proposal(
        summary="weights that no optimizer trains (an average, a teacher) are "
        "updated using the local shard, or its size",
        facts=(
            fact_of_wrong(*found, "untrained"),
            "no run separates this cause: when the loss gets all samples, the code "
            "after it does, too",
        ),
        fix="make the update of the global batch on all ranks: all-reduce its counts",
    )


def _are_in_the_loss(case: Case, wrong: set[str]) -> bool:
    """Returns whether these weights are written before the loss's backward.

    Inputs of the loss, such as moments of a normaliser, are no separate update.
    """
    written = {name for rank in case.probed_ranks for name in rank.written_by_backward}
    owners = {name.rpartition(".")[0] for name in wrong}
    return owners <= written or any(m.writes_parameters for m in case.modules())


def _first_differing(case: Case) -> tuple[int, list[str]]:
    """Returns the first step after which weights differ, and their names.

    None if gradients differ before: then trained weights show nothing.
    """
    first = case.first_broken("gradients")
    for step in range(case.outcome.spec.steps):
        if step and first is not None and first <= step:
            break
        if found := _differing(case, step):
            return step, found
    return 0, []


def _differing(case: Case, step: int) -> list[str]:
    """Returns the names of the weights that differ after a step."""
    every = (t for q in case.step_quantity("weights", step) for t in q.tensors)
    wrong = (t for t in every if t.excess * case.outcome.spec.rtol > case.rtol)
    return list(dict.fromkeys(t.name for t in wrong))


def _detect_read_in_step(case: Case) -> Proposal | None:
    """Proposes it as speculative for weights that some ranks write before they use them.

    Then gradients and trained weights differ in the same step, too.
    """
    first = case.first_broken("gradients")
    if first is None or case.run.ranks_agree:
        return None
    found = [name for name in _differing(case, first) if name in case.untrained]
    if not found:
        return None
    return Proposal(
        summary="weights that no optimizer trains (an average, a teacher) are "
        "updated on some ranks only, and the same step uses them",
        facts=(
            f"gradients first differ in step {first + 1}, and after it {len(found)} "
            f"untrained parameters differ, too: {names(found)}; when user code on "
            "every rank takes the branch of rank 0, the runs are equal",
        ),
        fix="make the same update on all ranks",
        code="update_teacher(teacher, student)  # not under `if rank == 0`",
        fixes=(Switch.FIRST_RANK,),
        speculative=True,
    )


def _from_own_data(found: list[str], when: str) -> Proposal:
    """Returns the proposal for an update that differs from the reference on all ranks.

    The update's rate depends on the local shard, also on the first rank.
    """
    return replaced(
        _by_numbers(found, when),
        summary="weights that no optimizer trains (an average, a teacher) are "
        "updated with numbers computed from the local shard",
        facts=(
            f"{when} {len(found)} untrained parameters differ between ranks, and on "
            f"each rank from the single-process run: {names(found)}; all trained "
            "parameters are equal",
        ),
        fix=(
            "compute the update from the samples of all ranks: all-reduce the "
            "numbers that it uses"
        ),
    )


def _by_numbers(found: list[str], when: str) -> Proposal:
    """Returns the proposal, as speculative, for ranks that make the same wrong update.

    The number used may be a rate that depends on the size of a shard.
    """
    modules = dict.fromkeys(name.rpartition(".")[0] for name in found)
    return Proposal(
        summary="weights that no optimizer trains (an average, a teacher) get the "
        "same update on all ranks, but another one than in the single-process run: "
        "it depends on the size of a shard, or on the number of steps",
        facts=(
            f"{when} {len(found)} untrained parameters differ from the "
            f"single-process run: {names(found)}; all trained parameters are equal, "
            "and the ranks agree",
        ),
        fix="compute the update from the global batch",
        fixes=(Substitute(boundary="state", names=tuple(modules)),),
        speculative=True,
    )


def _detect_buffers(case: Case) -> Proposal | None:
    """Proposes it for buffers outside DDP that the training step writes."""
    owner = diverging_buffers(case, batch_norm=False)
    if owner is None:
        return _detect_outside_model(case)
    if owner.written_in_forward:
        return None
    if owner.are_exchanged:
        return _exchanged(owner)
    if owner.are_broadcast:
        return None
    return Proposal(
        summary="a buffer that DDP does not broadcast is updated from the local "
        "shard, and drifts apart between ranks",
        facts=(*owner.facts, "no forward writes these buffers: the training step does"),
        fix="make the same update on all ranks: all-reduce the values that it uses",
        fixes=(Substitute(boundary="state", names=tuple(owner.modules)),),
        module=owner.modules[0],
    )


def _exchanged(owner: Owners) -> Proposal:
    """Returns the proposal for buffers on which ranks agree, unlike the reference."""
    return Proposal(
        summary="a buffer is updated with a value that the ranks exchange, which "
        "is not the value of the global batch: for example a mean of means with "
        "unequal counts",
        facts=(
            *owner.facts,
            "the step calls collectives, and all ranks have the same buffers "
            "afterwards",
        ),
        fix="all-reduce sums and counts, then divide",
        fixes=(Substitute(boundary="state", names=tuple(owner.modules)),),
        module=owner.modules[0],
    )


def _detect_outside_model(case: Case) -> Proposal | None:
    """Proposes it as speculative for a teacher that is no part of the model."""
    found = before_gradients(case)
    if found is None or not found.has_weights or found.is_trained:
        return None  # ddp/wrapper-missing
    on_trial = Proposal(
        summary="weights outside the model (an average, a teacher) are updated on "
        "some ranks only, or from the local shard, and the loss uses them",
        facts=found.facts,
        fix="make the same update on all ranks",
        fixes=found.fixes,
        speculative=True,
    )
    if not found.is_alike:
        return on_trial
    return replaced(
        on_trial,
        summary="weights outside the model (an average, a teacher) get the same "
        "update on all ranks, but another one than in the single-process run: for "
        "example none, if they are looked up by names that the wrapper changes",
        fix="update them from the model inside the wrapper",
        code="",
    )


def _drawn(drawn: list[str]) -> Proposal:
    """Returns the proposal, as speculative, for a teacher that every rank initialises itself."""
    return Proposal(
        summary="each rank draws its own weights outside the model (a teacher), "
        "and the loss uses them: DDP broadcasts only the model's parameters",
        facts=(
            f"after the first step ranks differ in {names(drawn)}",
            "with constants in place of random numbers the runs are equal",
        ),
        fix=(
            "use the same seed on all ranks before creating them, or broadcast "
            "them once"
        ),
        fixes=(Switch.CONSTANT_DRAWS,),
        speculative=True,
    )
