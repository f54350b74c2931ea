"""Detects forward/batch-coupled."""

from __future__ import annotations

import dataclasses

from ddpcheck.diagnose.facts import fitted
from ddpcheck.diagnose.facts.case import Case, Proposal
from ddpcheck.diagnose.facts.events import input_diff, written_by_the_model
from ddpcheck.diagnose.facts.loss import global_loss_fix, modules_of_the_loss
from ddpcheck.diagnose.facts.text import GATHER_ROWS, module, names, number
from ddpcheck.diagnose.probes.evidence import Injected, ModuleCall
from ddpcheck.run.intervention import GlobalModule, Substitute
from ddpcheck.run.spec import ONE_SIDED

SLUG = "forward/batch-coupled"
LINK = "forward"


def detect(case: Case) -> Proposal | None:
    """Proposes it for modules whose rows depend on the other rows."""
    if case.facts["lists"]:
        return None  # rows that all ranks have may be what differs
    calls = _mixing(case)
    # Collated anew, a shard may be in another order, and padded otherwise.
    is_anew = case.facts.get("collates") and case.facts["has_train_step"]
    if not calls or is_anew:
        return _detect_in_step(case)
    first = calls[0]
    modules = list(dict.fromkeys(m.name for m in calls))
    mended = list(dict.fromkeys(_with_rows_first(case, m.name) for m in calls))
    # A module that calls get_rank differs on all rows too, unless the group is hidden.
    asks = any(m.collectives for m in calls)
    proposal = Proposal(
        summary=f"{module(first.name)} ({first.kind}) mixes samples: its output for "
        "a sample depends on the other samples in the shard, or on its position "
        "among them",
        facts=(
            f"given the reference's input, the output of {module(first.name)} "
            "differs from the single-process output: relative difference "
            f"{number(first.rel_diff or 0)}",
            f"modules that differ in this way: {names(module(n) for n in modules)}",
        ),
        fix="compute the statistic over the global batch using a collective with "
        "autograd, or per sample (or per group of fixed size)",
        code="" if asks or len(set(case.run.shard_sizes)) > 1 else GATHER_ROWS,
        gathers=True,
        fixes=tuple(GlobalModule(name=n) for n in mended),
        control=()
        if asks
        else tuple(GlobalModule(name=n, hides=False) for n in mended),
        module=first.name,
        speculative=case.outputs_agree,
    )
    # The module's input may be of a type whose rows cannot be replaced.
    control = () if asks else (GlobalModule(hides=False),)
    whole = dataclasses.replace(
        proposal,
        fixes=(GlobalModule(),),
        control=control,
        fallback=_on_all(case, proposal),
    )
    return dataclasses.replace(proposal, fallback=whole)


def _mixing(case: Case) -> list[ModuleCall]:
    """Returns the calls of modules whose outputs differ only because of other rows."""
    found = case.diverging()
    # A module need not cause a difference of parameters that a part of it wrote.
    writers = {m.name for m in found if m.writes_parameters}
    writers |= written_by_the_model(case)
    rewritten = [m.name for m in case.modules() if m.has_other_weights]
    has_micros = case.probed is not None and bool(case.probed.reference.micros)
    losses = modules_of_the_loss(case)
    return [
        m
        for m in found
        if not m.is_batch_norm
        and not m.normalises
        and not m.through_buffers
        and not any(_is_within(name, m.name) for name in writers)
        # If the step rewrites weights, those of ranks may differ from the single-process
        # run's by the second call. With micro-batches already in the first call, whose
        # samples are not those of the single-process run's first call.
        and not (
            (m.call or has_micros)
            and any(_is_within(name, m.name) for name in rewritten)
        )
        and not (m.collectives and m.writes_buffers)
        and m.name not in losses
    ]


def _on_all(case: Case, proposal: Proposal) -> Proposal | None:
    """Returns the proposal for rows that are no samples: of graphs, of packed tokens.

    Indices of rows mean other rows when the rows of all ranks are present. Also for a
    backward that mixes samples, as of a solver with adaptive steps.
    """
    if proposal.speculative and not case.facts["has_train_step"]:
        return None
    fact = "when every rank has the samples of all ranks, the runs are equal"
    return dataclasses.replace(
        proposal,
        facts=(*proposal.facts, fact),
        fixes=(Substitute(boundary="batches"),),
        control=(),
    )


def _detect_in_step(case: Case) -> Proposal | None:
    """Proposes it as speculative for a step that gives the model other inputs on ranks."""
    worst = input_diff(case)
    if case.diverging():
        return fitted.by_the_model(case)
    if worst <= case.close:
        return (
            _detect_in_gradients(case)
            or _detect_stored_samples(case)
            or _detect_choice_of_outputs(case)
        )
    if not case.facts["has_train_step"]:
        return None
    proposal = Proposal(
        summary="the training step mixes samples before it calls the model: the "
        "model's input for a sample depends on the other samples in the shard, or "
        "on its position among them",
        facts=(
            "the model's input differs from the single-process input: relative "
            f"difference {number(worst)}",
            "when the step has the samples of all ranks, the ranks train as the "
            "single-process run does",
        ),
        fix=(
            "mix within groups of samples that sharding does not divide, or over "
            "the global batch"
        ),
        fixes=global_loss_fix(case),
        speculative=True,
        last_resort=1,
    )
    # Gradients of outputs cannot be sent back from another rank.
    last = dataclasses.replace(
        proposal, fixes=(Substitute(boundary="batches"),), last_resort=2
    )
    return dataclasses.replace(proposal, fallback=last)


def _detect_in_gradients(case: Case) -> Proposal | None:
    """Proposes it as speculative for modules that weight gradients by their number of rows.

    Their outputs do not show it: for example a learned step size whose gradient is
    scaled by the number of activations.
    """
    found = case.mismatched("gradients", 0)
    is_of_some = found and len(found) < case.facts["num_tensors"]
    if not is_of_some or not case.loss_is_sound or case.reduce_is_broken:
        return None
    modules = list(dict.fromkeys(name.rpartition(".")[0] for name in found))
    if "" in modules:
        return None
    added = case.probed.reference.injected if case.probed else Injected()
    adds = set(found) <= set(added.names)
    norms = {m.name for m in case.modules() if m.is_batch_norm}
    if not adds and norms & set(modules):
        return None  # norm/
    if adds and added.of_scores:
        return None  # loss/router-aux
    does = (
        "computes a part of the gradients from its input rows, in a custom "
        "backward, and a shard has other rows than the global batch"
        if adds
        else "weights gradients by the number of its input rows, and a shard has "
        "fewer rows than the global batch"
    )
    proposal = Proposal(
        summary=f"{module(modules[0])} {does}",
        facts=(
            f"outputs and the loss's gradient at them are right; {len(found)} "
            f"gradients are wrong: {names(found)}",
            "modules that hold these parameters: "
            f"{names(module(name) for name in modules)}",
        ),
        fix=(
            "compute the added gradient from the rows of all ranks, or as a mean "
            "over rows"
        )
        if adds
        else (
            "weight by a number that does not depend on the batch size, for "
            "example one of a single sample"
        ),
        fixes=tuple(GlobalModule(name=name) for name in modules),
        module=modules[0],
        speculative=True,
        last_resort=2,
    )
    if not adds:
        return proposal
    # The term may be computed outside the modules that get its gradient.
    wide = dataclasses.replace(proposal, fixes=(GlobalModule(),))
    return dataclasses.replace(proposal, fallback=wide)


def _detect_stored_samples(case: Case) -> Proposal | None:
    """Proposes it as speculative for a model that keeps samples, and uses them later.

    All values are right up to a step in which the model's outputs have another shape,
    for example one column per stored row.
    """
    first = case.first_broken("gradients")
    told = case.outcome.facts().get("not_compared", {})
    resized = [
        name
        for name, why in told.items()
        if name.startswith("output ") and why != ONE_SIDED
    ]
    state = [case.first_broken(name) for name in ("weights", "buffers")]
    is_right = all(step is None or step >= (first or 0) for step in state)
    if not first or not resized or not is_right or case.reduce_is_broken:
        return None
    if not case.step_quantity("outputs", 0):
        return None
    return Proposal(
        summary="the model stores samples of the local shard and uses them in "
        "later steps: its output for a sample depends on the earlier samples of "
        "the shard",
        facts=(
            f"up to step {first} all values are right; then "
            f"{resized[0].partition(' ')[2]} has another shape than in the "
            f"single-process run: {told[resized[0]]}",
            "when the model has the samples of all ranks, the runs are equal",
        ),
        fix=(
            "gather the stored samples from all ranks, in the order of the global batch"
        ),
        fixes=(GlobalModule(),),
        module="",
        speculative=True,
        last_resort=2,
    )


def _detect_choice_of_outputs(case: Case) -> Proposal | None:
    """Proposes it as speculative for a model that returns other outputs on some ranks.

    The output for a sample depends on all samples: for example the model stops early if
    it is confident for all of them.
    """
    told = [f.get("not_compared", {}) for f in case.ranks]
    found = {
        rank: [what for what, why in named.items() if why == ONE_SIDED]
        for rank, named in enumerate(told)
    }
    first = next((rank for rank, outputs in found.items() if outputs), None)
    if first is None or case.run.faults or case.reduce_is_broken:
        return None
    return Proposal(
        summary="the model chooses its outputs by all samples of its input, and "
        "chooses differently for a shard than for the global batch",
        facts=(
            f"only one of rank {first} and the single-process run returns "
            f"{names(found[first])}",
            "when the model has the samples of all ranks, the runs are equal",
        ),
        fix="choose per sample, or by the samples of all ranks together",
        fixes=(GlobalModule(),),
        module="",
        speculative=True,
        last_resort=2,
    )


def _is_within(name: str, outer: str) -> bool:
    """Returns whether a module is `outer` or a part of it."""
    return not outer or name == outer or name.startswith(f"{outer}.")


def _with_rows_first(case: Case, name: str) -> str:
    """Returns the module, or the innermost one around it that takes samples as rows.

    A module that treats the batch as a sequence passes it on as another dimension.
    """
    turned = {m.name for m in case.modules() if not m.rows_first}
    while name in turned and name:
        name = name.rpartition(".")[0]
    return name
