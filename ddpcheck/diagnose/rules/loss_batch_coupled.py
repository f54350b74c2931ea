"""Detects loss/batch-coupled."""

from __future__ import annotations

import dataclasses

from ddpcheck.diagnose.facts import rows
from ddpcheck.diagnose.facts.case import Case, Proposal
from ddpcheck.diagnose.facts.events import (
    asks_before_backward,
    common_factor,
    input_diff,
)
from ddpcheck.diagnose.facts.external_state import own_samples
from ddpcheck.diagnose.facts.loss import (
    global_loss_fix,
    global_loss_of_other_rows,
    is_divided_by_counts,
    loss_with_collectives,
    modules_of_the_loss,
    numbers_of_modules,
    ratio_evidence,
    ratio_fact,
    whole_model_fix,
    whole_step_fix,
)
from ddpcheck.diagnose.facts.text import in_group, module, names, number
from ddpcheck.run import intervention
from ddpcheck.run.intervention import (
    GlobalLoss,
    GlobalModule,
    Interventions,
    Substitute,
    Switch,
)

SLUG = "loss/batch-coupled"
LINK = "loss"
_GATHER = "gather = torch.distributed.nn.functional.all_gather\n" + in_group(
    "output = torch.cat(gather(output.contiguous()))",
    "target = torch.cat(gather(target.contiguous()))",
)


def detect(case: Case) -> Proposal | None:
    """Proposes it where one sample's gradient depends on other samples."""
    found = _detect_at_outputs(case) or _detect_replayed_samples(case)
    collectives = max((f.get("collectives", 0) for f in case.ranks), default=0)
    if found is None or found.speculative or not collectives:
        return found
    return _or_alone(found) if case.facts["has_train_step"] else found


def _or_alone(proposal: Proposal) -> Proposal:
    """Returns it, with a last fallback in which the step has no process group.

    With the samples of all ranks it would count and gather them once more. It is the
    last: then the step does what the single-process run does, whatever its collectives
    are.
    """
    chain = [proposal]
    while (following := chain[-1].fallback) is not None:
        chain.append(following)
    wide = (p for p in chain if intervention.found(p.fixes, GlobalLoss))
    if (first := next(wide, None)) is None:
        return proposal
    made = dataclasses.replace(
        first, fixes=(*first.fixes, Switch.LOSS_WITHOUT_RANKS), fallback=None
    )
    for each in reversed(chain):
        made = dataclasses.replace(each, fallback=made)
    return made


def _detect_at_outputs(case: Case) -> Proposal | None:
    if case.loss_is_sound:
        inside = _detect_inside_module(case) if _gradients_alone_differ(case) else None
        return _detect_terms_of_modules(case) or inside or _detect_later_step(case)
    if not case.has_cuts:
        return _detect_without_output(case) or _detect_by_gradients_alone(case)
    if not case.couples:
        return _detect_stored_samples(case) or _detect_weight_by_gradients(case)
    if case.losses_replicate or (case.losses_average and case.loss_asks_others):
        return None  # the value is global: rules of collective/
    if _is_by_the_step(case):
        return None  # forward/batch-coupled
    residual = max(residual for _, residual in case.ratios())
    told = (
        ratio_fact(case)
        if case.rank_ratios is not None
        else "no single factor per rank explains the gradient at the outputs: "
        f"residual {number(residual)} of its size"
    )
    facts = (_coupled(case), told)
    inner = loss_with_collectives(case)
    wide = (GlobalModule(name=inner),) if inner else whole_model_fix(case)
    narrower = _detect_weight_by_gradients(case) or _detect_inside_module(case)
    whole = _proposal(facts, wide) if wide else None
    return dataclasses.replace(
        _of_unused(case, _proposal(facts, global_loss_fix(case))),
        code=_code(case),
        evidence=ratio_evidence(case),
        fallback=dataclasses.replace(narrower, fallback=whole) if narrower else whole,
    )


def _of_unused(case: Case, proposal: Proposal) -> Proposal:
    """Returns it with what is wrong with a gather whose result no gradient depends on."""
    calls = max((rank.collectives for rank in case.probed_ranks), default=0)
    if not calls or case.loss_collectives or case.is_part:
        return proposal
    fact = (
        f"collectives called in one step: {calls}; without a process group the ranks "
        "compute the same loss and gradients"
    )
    return dataclasses.replace(
        proposal,
        facts=(*proposal.facts, fact),
        fix=f"{proposal.fix}; what the ranks exchange now reaches no gradient",
    )


def _code(case: Case) -> str:
    """Returns the code that gathers the inputs of the loss, "" if it may not work.

    It needs shards of one size, and a loss of the model's output, one tensor, that does
    not gather by itself.
    """
    if case.probed is None or case.is_part or case.loss_collectives:
        return ""
    cuts = [cut for rank in case.probed.ranks for cut in rank.cuts]
    is_of_output = case.probed.reference.frontier == ("",)
    is_one = not any("/" in cut.key for cut in cuts)
    is_even = len(set(case.run.shard_sizes)) == 1
    return _GATHER if is_of_output and is_one and is_even else ""


def _detect_stored_samples(case: Case) -> Proposal | None:
    """Proposes it for stored samples that are the rank's own.

    Those of earlier steps are constants: no output changes another one's gradient.
    """
    found = own_samples(case)
    # A divisor of the loss needs no stored samples.
    if not found or case.rank_ratios is not None:
        return None
    fact = (
        "outside the model each rank stores rows of its own samples only: "
        f"{names(found)}; gradients differ from the next step on"
    )
    return dataclasses.replace(
        _proposal((fact, ratio_fact(case)), global_loss_fix(case)),
        summary="the loss compares samples with stored earlier samples, and each "
        "rank stores only its own samples",
        fix="gather the samples to store from all ranks",
        gathers=False,
        evidence=ratio_evidence(case),
    )


def _detect_replayed_samples(case: Case) -> Proposal | None:
    """Proposes it on trial for a step that trains on the rank's earlier samples."""
    found = own_samples(case)
    wrong = rows.first_wrong(case) if found else None
    if wrong is None or not wrong.step:
        return None
    facts = (
        "outside the model each rank stores rows of its own samples only: "
        f"{names(found)}; from step {wrong.step + 1} on the ranks train on other "
        "samples than the single-process run",
        "when every rank has the samples of all ranks, the runs are equal",
    )
    return dataclasses.replace(
        _proposal(facts, (Substitute(boundary="batches"),)),
        summary="later steps train on samples that each rank stored from its own "
        "shard; the single-process run stores samples of the whole batch",
        fix="choose the samples to store among those of all ranks, then shard them",
        speculative=True,
        last_resort=2,
    )


def _detect_weight_by_gradients(case: Case) -> Proposal | None:
    """Proposes it on trial for a weight of a term that is computed from gradients.

    The norm of a term's gradient depends on all samples. Outputs do not show it: a cut
    gets no gradient of torch.autograd.grad.
    """
    events = [f.get("events", "") for f in case.ranks]
    if not events or "G" not in events[0] or case.reduce_is_broken:
        return None
    facts = (
        f"calls of torch.autograd.grad for parameters: {events[0].count('G')}; when "
        "these gradients are averaged over ranks, the runs are equal",
        ratio_fact(case),
    )
    return dataclasses.replace(
        _proposal(facts, (Switch.AVERAGED_AUTOGRAD_GRAD,)),
        summary="the loss is weighted by gradients of the local shard from "
        "torch.autograd.grad: the weights are no sum over samples, and DDP reduces "
        "only the gradients of backward",
        fix="average the gradients over ranks before taking their norms",
        code="(grad,) = torch.autograd.grad(term, weight, retain_graph=True)\n"
        "if dist.is_initialized():\n"
        "    dist.all_reduce(grad.div_(dist.get_world_size()))",
        speculative=True,
    )


def _detect_by_gradients_alone(case: Case) -> Proposal | None:
    """Proposes the same where no output can be cut for them."""
    events = [f.get("events", "") for f in case.ranks]
    return (
        _detect_weight_by_gradients(case)
        if events and asks_before_backward(events[0])
        else None
    )


def _is_by_the_step(case: Case) -> bool:
    """Returns whether the step has mixed samples, inputs and targets, before the loss."""
    assert case.probed is not None
    found = case.probed.reference.couplings
    of_outputs = (*found.nudged.values(), *found.copied.values())
    relates = max(of_outputs, default=0.0) > case.least_coupling
    return input_diff(case) > case.close and not relates


def _detect_without_output(case: Case) -> Proposal | None:
    """Proposes it on trial for a loss of the model that no module's output shows."""
    fixes = whole_model_fix(case) or global_loss_of_other_rows(case)
    fixes = fixes or whole_step_fix(case)
    if not fixes or common_factor(case) is not None:
        return None
    if is_divided_by_counts(case) is not False:
        return None
    fact = (
        "no factor per rank turns the ranks' gradients into the single-process gradient"
    )
    return dataclasses.replace(
        _proposal((fact,), fixes), speculative=True, last_resort=1
    )


def _detect_terms_of_modules(case: Case) -> Proposal | None:
    """Proposes it for a module of the loss that has its mean made of what it mixed."""
    losses = modules_of_the_loss(case)
    found = [m for m in case.diverging() if m.name in losses]
    if not found:
        return None
    facts = tuple(
        f"given the reference's input, {module(m.name)} passes on rows that differ "
        "from the single-process rows: relative difference "
        f"{number(m.rel_diff or 0)}"
        for m in found
    )
    return _proposal(facts, tuple(GlobalModule(name=m.name) for m in found))


def _detect_later_step(case: Case) -> Proposal | None:
    """Proposes it on trial for samples that were chosen correctly in the first step."""
    first = case.first_broken("gradients")
    if not first or case.facts["has_train_step"] or not case.has_cuts:
        return None
    earlier = [case.first_broken(name) for name in ("weights", "buffers")]
    if any(step is not None and step < first for step in earlier):
        return None
    strongest = case.probed.reference.couplings.strongest() if case.probed else None
    if strongest is None or strongest <= case.least_coupling:
        return None
    happened = f"up to step {first} gradients are right by coincidence of the samples"
    found = _proposal((_coupled(case), happened), global_loss_fix(case))
    return dataclasses.replace(found, speculative=True, last_resort=1)


def _gradients_alone_differ(case: Case) -> bool:
    return (
        case.forward_is_sound
        and case.rest_is_broken
        and bool(case.mismatched("gradients", 0))
    )


def _detect_inside_module(case: Case) -> Proposal | None:
    """Proposes it on trial for terms that modules compute of their samples.

    Gradients of gradients bypass the outputs of modules, and a module that calls
    collectives computes another term on the same rows: it must get all of them.
    """
    found = numbers_of_modules(case)
    if not found:
        return None
    facts = tuple(
        f"{module(name)} returns one number for all its samples: {number(mean)} on "
        f"average over ranks, {number(reference)} in the single-process run"
        for name, (mean, reference) in found.items()
    )
    fixes = tuple(GlobalModule(name=name) for name in found)
    return dataclasses.replace(_proposal(facts, fixes), speculative=True, last_resort=1)


def _proposal(facts: tuple[str, ...], fixes: Interventions) -> Proposal:
    return Proposal(
        summary="the loss is not a sum over samples: the mean of the per-rank "
        "losses is not the loss of the global batch",
        facts=facts,
        fix="all-reduce the statistics that the loss needs, with autograd, or "
        "gather outputs and targets with autograd and compute the loss on the "
        "global batch",
        gathers=True,
        fixes=fixes,
    )


def _coupled(case: Case) -> str:
    assert case.probed is not None
    found = case.probed.reference.couplings
    through_outputs = max([*found.nudged.values(), *found.copied.values()], default=0.0)
    through_targets = max(found.targets.values(), default=0.0)
    by_order = max(found.ordered.values(), default=0.0)
    if max(through_outputs, through_targets) <= case.least_coupling < by_order:
        return (
            "when the single-process run has blocks of samples in another order, "
            f"the loss gradient at the same samples changes by {number(by_order)} "
            "of its size"
        )
    cuts = [c for r in case.probed.ranks for c in r.cuts]
    if any(c.selects_columns for c in cuts):
        return (
            "some output columns have a gradient in the single-process run and "
            "none on a rank, or the reverse: other samples decide which columns "
            "count"
        )
    if max(through_outputs, through_targets) <= case.least_coupling:
        return (
            "some samples, or elements of them, have no gradient in the "
            "single-process run and one on a rank, or the reverse: other samples "
            "decide which of them count"
        )
    if through_outputs > case.least_coupling:
        return (
            "changing the outputs of some samples changes the loss gradient at the "
            f"others by {number(through_outputs)} of its size"
        )
    return (
        "changing the targets of some samples changes the loss gradient at the "
        f"others by {number(through_targets)} of its size, and not by a common "
        "factor"
    )


def detect_statistics(case: Case) -> Proposal | None:
    """Proposes it for numbers that a step computes from its samples and uses.

    They carry no gradient, so no gradient at the outputs shows them: for example a mean
    that a penalty on slopes is compared with.
    """
    first = case.first_broken("gradients")
    if not case.facts["has_train_step"] or first is None or case.run.faults:
        return None
    return Proposal(
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
