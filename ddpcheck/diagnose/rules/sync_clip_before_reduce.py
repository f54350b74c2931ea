"""Detects sync/clip-before-reduce."""

from __future__ import annotations

from ddpcheck.diagnose.facts.case import Case, Proposal
from ddpcheck.diagnose.facts.events import ranks_disagree
from ddpcheck.diagnose.facts.loss import is_sound_until_backward
from ddpcheck.diagnose.facts.text import names
from ddpcheck.diagnose.proposal import replaced
from ddpcheck.run.intervention import Switch

SLUG = "sync/clip-before-reduce"
LINK = "update"
SUMMARY = (
    "gradients are clipped or changed before they are averaged over ranks: the mean "
    "of clipped gradients is not the clipped mean"
)
FIX = "clip once, after the last backward and before the optimizer's step"
CODE = (
    "loss.backward()\n"
    "torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)\n"
    "optimizer.step()"
)


def detect(case: Case) -> Proposal | None:
    """Proposes it for tensor hooks on parameters, or a clipping before a backward."""
    is_sound = case.loss_is_sound or is_sound_until_backward(case)
    if case.forward_is_sound and case.has_cuts and not is_sound:
        return _detect_per_sample_clipping(case)
    if not case.forward_is_sound:
        return None
    hooked = next(filter(None, (f.get("hooked") for f in case.ranks)), [])
    early = max((f.get("early_clips", 0) for f in case.ranks), default=0)
    clips = early or any(f.get("reduced_after_clip") for f in case.ranks)
    if not hooked and not clips:
        return _detect_other_clipping(case)
    facts = ["outputs and the loss's gradient at them are right"]
    fixes = []
    if hooked:
        facts.append(f"tensor hooks get the local gradient of {names(hooked)}")
        fixes.append(Switch.PARAMETERS_UNHOOKED)
    if clips:
        facts.append(
            f"{early} clippings by norm came before a backward of the same step"
            if early
            else "a clipping by norm came before an all_reduce of the same step"
        )
        fixes.append(Switch.CLIPPED_AT_UPDATE)
    return Proposal(
        summary=SUMMARY,
        facts=tuple(facts),
        fix=FIX if clips else f"{FIX}, in place of the hooks on {names(hooked)}",
        code=CODE,
        safe=False,
        fixes=tuple(fixes),
        # The tensor reduced after a clipping may be a metric.
        speculative=not hooked and not early,
    )


def _detect_per_sample_clipping(case: Case) -> Proposal | None:
    """Proposes it as speculative for gradients of samples that are clipped one by one.

    Each has its own backward, so DDP returns the mean of one sample per rank, and that
    mean is clipped.
    """
    clips = max((f.get("early_clips", 0) for f in case.ranks), default=0)
    if not clips or case.run.faults or not case.run.ranks_agree:
        return None
    return Proposal(
        summary="the gradient of each micro-batch is clipped separately, like a "
        "per-sample gradient, but DDP has already averaged it over ranks",
        facts=(
            f"{clips} clippings by norm came before a backward of the same step",
            "when gradients stay local until the optimizer steps and are averaged "
            "then, the runs are equal",
        ),
        fix=(
            "clip in no_sync, accumulate, and average the accumulated gradients "
            "over ranks"
        ),
        code="with model.no_sync():\n"
        "    loss(model(x), y).backward()  # then clip and add up\n"
        "for p in model.parameters():\n"
        "    dist.all_reduce(p.grad)\n"
        "    p.grad /= dist.get_world_size()",
        fixes=(Switch.AVERAGED_AT_UPDATE,),
        speculative=True,
    )


def _detect_other_clipping(case: Case) -> Proposal | None:
    """Proposes it as speculative for clipping without torch's functions.

    Gradients that a step writes between two backwards of an update, hooks on
    activations, or backwards of autograd functions that clip what they pass on.
    """
    if case.first_broken("gradients") is None:
        return None
    if any(f.get("comm_hooks") for f in case.ranks) and case.run.ranks_agree:
        fact = (
            "a communication hook changes gradients and then averages them; when "
            "it changes the mean of all ranks instead, the runs are equal"
        )
        return replaced(
            _on_trial(fact, Switch.COMM_HOOKS_ON_MEANS), fallback=_by_the_step(case)
        )
    return _by_the_step(case)


def _by_the_step(case: Case) -> Proposal | None:
    if not case.rest_is_broken:
        return _detect_before_exchange(case)
    changed = max((f.get("early_changes", 0) for f in case.ranks), default=0)
    if changed:
        return _on_trial(
            f"the step wrote into gradients before {changed} backwards that added "
            "to them; without these writes the runs are equal",
            Switch.KEPT_SUMS,
        )
    late = max((f.get("late_hooks", 0) for f in case.ranks), default=0)
    on_the_way = _detect_during_backward(case)
    if not late:
        return on_the_way
    fact = (
        f"{late} post-accumulate hooks get the local gradients, before DDP reduces "
        "them; when the hooks run after backward, the runs are equal"
    )
    return replaced(_on_trial(fact, Switch.HOOKS_AFTER_BACKWARD), fallback=on_the_way)


def _detect_during_backward(case: Case) -> Proposal | None:
    """Proposes it as speculative for changes of gradients during backward."""
    if not any(f.get("hooks_on_the_way") for f in case.ranks):
        return None
    if any(f.get("set_on_wrapper") for f in case.ranks):
        return None  # the loss may change gradients: without a loss this is not tried
    return _on_trial(
        "hooks or an autograd function change gradients before they reach the "
        "parameters; when they pass gradients on unchanged, the runs are equal",
        Switch.ALL_UNHOOKED,
    )


def _detect_before_exchange(case: Case) -> Proposal | None:
    """Proposes it for a step that changes gradients and then averages them itself.

    When they are averaged right after backward, as in DDP, the step changes means.
    """
    alone = max((f.get("changes_alone", 0) for f in case.ranks), default=0)
    reduces = any("F" in f.get("events", "") for f in case.ranks)
    if not alone or reduces or ranks_disagree(case, "gradients", 0):
        return None
    fact = (
        f"the step wrote into local gradients before {alone} exchanges with other "
        "ranks; when gradients are averaged first, the runs are equal"
    )
    return replaced(_on_trial(fact), by_hand=True, speculative=False)


def _on_trial(fact: str, *fixes: Switch) -> Proposal:
    return Proposal(
        summary=SUMMARY,
        facts=("outputs and the loss's gradient at them are right", fact),
        fix=FIX,
        code=CODE,
        safe=False,
        fixes=fixes,
        speculative=True,
    )
