"""Finds the modules whose buffers differ after a step that was otherwise right."""

from __future__ import annotations

from dataclasses import dataclass

from ddpcheck.compare import tolerance
from ddpcheck.diagnose.facts.case import Case, Proposal
from ddpcheck.diagnose.facts.text import module, names, number
from ddpcheck.diagnose.probes.evidence import ModuleCall
from ddpcheck.report.data import Difference
from ddpcheck.run.intervention import GlobalModule, Substitute
from ddpcheck.run.session.agreement import ranks_differ


@dataclass(frozen=True, slots=True)
class Owners:
    """The modules, and the facts about their buffers.

    `written_in_forward`: while the model's forward runs; else the training step does.
    `are_called`: one of the modules is called itself, and writes them.
    `are_broadcast`: a DDP object broadcasts rank 0's before its forward.
    `are_read_at_once`: by the call that writes them, which is right otherwise.
    `are_exchanged`: the step calls collectives, and all ranks have the same afterwards.
    """

    modules: tuple[str, ...]
    facts: tuple[str, ...]
    written_in_forward: bool
    are_called: bool
    are_broadcast: bool
    are_read_at_once: bool
    are_exchanged: bool


def silenced(case: Case) -> list[ModuleCall]:
    """Returns batch norms that differ, and are multiplied by zero in the first step.

    Their buffers and the gradients of the first step show it; their outputs cannot. If
    a fix already gives them all rows, the modules before them make them differ.
    """
    if case.first_broken("gradients") != 0 or not case.loss_is_sound:
        return []
    fixes = case.outcome.spec.fixes
    wrong = {t.name.rpartition(".")[0] for t in _wrong_rows(case, 0)}
    wrong = {name for name in wrong if GlobalModule(name=name) not in fixes}
    return [
        m
        for m in case.modules()
        if m.name in wrong and (m.is_batch_norm or m.normalises) and not m.collectives
    ]


def statistics_at_start(case: Case) -> list[str]:
    """Returns start statistics that are equal on all ranks but not single-process ones.

    That is so if model() calls its batch norms, and they synchronise in a group. Norms
    that train with a batch's statistics do not read them. [] if any other buffer
    differs, or if ranks do.
    """
    found = sorted({n for f in case.ranks for n in f.get("start_buffers_differ", [])})
    states = [f.get("start_buffers") for f in case.ranks]
    norms = {
        m.name
        for m in case.modules()
        if (m.is_batch_norm or m.normalises) and m.writes_buffers
    }
    are_theirs = all(name.rpartition(".")[0] in norms for name in found)
    if (
        not are_theirs
        or None in states
        or not tolerance.digests_agree(states, case.rtol)
    ):
        return []
    return found


def has_right_gradients(case: Case) -> bool:
    """Returns whether gradients were compared, and neither they nor outputs differ."""
    told = case.step_quantity("gradients", 0)
    return (
        bool(told)
        and not case.run.faults
        and all(case.first_broken(q) is None for q in ("gradients", "outputs"))
    )


def _wrong_rows(case: Case, step: int) -> list[Difference]:
    return [
        t
        for q in case.step_quantity("buffers", step)
        for t in q.tensors
        if t.excess * case.outcome.spec.rtol > case.rtol
    ]


def diverging_buffers(case: Case, *, batch_norm: bool) -> Owners | None:
    """Returns modules whose buffers differ before their outputs do.

    `batch_norm` asks for modules that behave as a batch norm, or for all others.
    """
    wrong = case.diverging()
    first, later = case.first_broken("buffers"), case.first_broken("gradients")
    is_idle = bool(wrong) and has_right_gradients(case)
    if first is None or not (is_idle or all(m.through_buffers for m in wrong)):
        return None
    if first > 0 and later is not None and later <= first:
        return None
    if not wrong and later == 0 and (case.probed is None or silenced(case)):
        return None  # more than buffers is wrong with them, or may be
    kinds = {m.name: m.is_batch_norm or m.normalises for m in case.modules()}
    rows = _wrong_rows(case, first)
    rows = [
        t for t in rows if kinds.get(t.name.rpartition(".")[0], False) == batch_norm
    ]
    if not rows:
        return None
    worst = max(rows, key=lambda t: t.rel_diff)
    modules = tuple(dict.fromkeys(t.name.rpartition(".")[0] for t in rows))
    outputs = (
        "no gradient depends on their outputs"
        if is_idle
        else (
            "given the single-process buffers, their outputs equal the "
            "single-process outputs"
        )
        if wrong
        else "their outputs in the first step are right"
    )
    facts = [
        f"after {_step(first)} {worst.name} differs from the single-process run by "
        f"{number(worst.rel_diff)} relative, on rank {worst.rank}",
        f"modules whose buffers differ: {names(map(module, modules))}; {outputs}",
    ]
    facts.append(
        "gradients are right in all steps"
        if later is None
        else f"gradients differ from step {later + 1} on: forward reads the buffer"
    )
    return _owners(
        case,
        modules,
        tuple(facts),
        rows,
        first,
        are_read_at_once=bool(wrong) and not is_idle,
    )


def wrong_at_once(case: Case) -> Owners | None:
    """Returns modules whose buffers differ after the first step, as gradients do.

    Norms are left out, as they have causes of their own.
    """
    starts = any(f.get("start_buffers_differ") for f in case.ranks)
    if starts or case.first_broken("gradients") != 0 or case.run.faults:
        return None
    norms = {m.name for m in case.modules() if m.is_batch_norm or m.normalises}
    rows = [t for t in _wrong_rows(case, 0) if t.name.rpartition(".")[0] not in norms]
    if not rows:
        return None
    worst = max(rows, key=lambda t: t.rel_diff)
    modules = tuple(dict.fromkeys(t.name.rpartition(".")[0] for t in rows))
    called = names(m or "the model itself" for m in modules)
    facts = (
        f"after the first step {worst.name} differs from the single-process run by "
        f"{number(worst.rel_diff)} relative, on rank {worst.rank}",
        f"modules whose buffers differ: {called}",
    )
    return _owners(case, modules, facts, rows, 0)


def _owners(
    case: Case,
    modules: tuple[str, ...],
    facts: tuple[str, ...],
    rows: list[Difference],
    step: int,
    *,
    are_read_at_once: bool = True,
) -> Owners:
    sent = set(case.outcome.facts().get("broadcast_buffers", ()))
    called = any(m.writes_buffers for m in case.modules() if m.name in modules)
    return Owners(
        modules,
        facts,
        written_in_forward=called or _in_forward(case, modules),
        are_called=called,
        are_broadcast={t.name for t in rows} <= sent,
        are_read_at_once=called and are_read_at_once,
        are_exchanged=max((f.get("collectives", 0) for f in case.ranks), default=0) > 0
        and not ranks_differ(case.outcome, "buffers", step, case.rtol),
    )


def _step(number: int) -> str:
    return f"step {number + 1}" if number else "the first step"


def _in_forward(case: Case, modules: tuple[str, ...]) -> bool:
    """Returns whether the model's forward writes buffers of any of the modules."""
    return any(set(rank.written) & set(modules) for rank in case.probed_ranks)


def read_at_once(case: Case, *, sent: bool) -> Proposal | None:
    """Returns the proposal, on trial, if gradients differ with buffers in step 1.

    It is for buffers that a step writes from the local shard, and reads before it ends:
    a count of items that a loss subtracts, a threshold computed from the shard. A loss
    or forward of all rows would fix the gradient as well; setting only the buffers to
    the single-process values is a more precise proof.

    `sent`: whether DDP broadcasts rank 0's buffers before its forward; None is returned
    if that is not so.
    """
    owner = wrong_at_once(case)
    ranks = case.probed_ranks
    if any(rank.written_parameters for rank in ranks):
        return None  # state/forward-writes-parameter: a buffer may be made with them
    if owner is None or owner.are_broadcast != sent:
        return None
    return Proposal(
        link="forward",
        summary=_summary_of_reads(owner),
        facts=(
            *owner.facts,
            "when they are set to the single-process values as soon as they are "
            "written, the runs are equal",
        ),
        fix="all-reduce the written value, on all ranks, before it is read",
        fixes=(Substitute(boundary="writes", names=tuple(owner.modules)),),
        module=owner.modules[0],
        speculative=True,
    )


def _summary_of_reads(owner: Owners) -> str:
    by = "forward" if owner.written_in_forward else "the training step"
    own = (
        "with other values than in the single-process run"
        if owner.are_exchanged
        else "from the local shard"
    )
    return (
        f"{by} updates a buffer {own}, then reads it in the same step: a sample's "
        "gradient depends on its shard"
    )
