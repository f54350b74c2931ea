"""Detects norm/local-batch-stats."""

from __future__ import annotations

from ddpcheck.diagnose.facts.buffers import (
    has_right_gradients,
    silenced,
    statistics_at_start,
)
from ddpcheck.diagnose.facts.case import Case, Proposal
from ddpcheck.diagnose.facts.data_parallel_case import DataParallelCase
from ddpcheck.diagnose.facts.text import module, names, number
from ddpcheck.diagnose.probes.evidence import ModuleCall
from ddpcheck.diagnose.proposal import replaced
from ddpcheck.run.intervention import (
    GlobalModule,
    Interventions,
    Substitute,
    Switch,
    SyncBatchNorm,
)

SLUG = "norm/local-batch-stats"
LINK = "forward"

_FROZEN = Switch.FROZEN_NORMS
# Modules that torch.jit compiles, scripted and traced: no part can be replaced.
_COMPILED = ("RecursiveScriptModule", "TopLevelTracedModule", "TracedModule")
_PLAIN = ("BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "SyncBatchNorm")


def detect(case: Case) -> Proposal | None:
    """Proposes synchronised batch norm where batch norms' outputs differ."""
    calls = [m for m in case.diverging() if _normalises(m)]
    if calls and has_right_gradients(case):
        return None  # norm/running-stats-rank0: the outputs of these norms are not used
    hidden = not calls
    if hidden:
        calls = silenced(case)
    if not calls:
        return None
    torchs = [m for m in calls if m.is_batch_norm]
    compiled = [m for m in calls if m.kind in _COMPILED]
    first = calls[0]
    layers = list(dict.fromkeys(m.name for m in calls))
    are_alone = _are_right_elsewhere(case, layers)
    fixes: Interventions = tuple(
        GlobalModule(name=m.name) for m in calls if not m.is_batch_norm
    )
    if torchs:
        named = dict.fromkeys(m.name for m in torchs if m.name) if are_alone else ()
        fixes = (SyncBatchNorm(names=tuple(named)), *fixes)
    at_start = statistics_at_start(case)
    if at_start:
        fixes = (*fixes, Substitute(boundary="start"))
    found = Proposal(
        summary=_of_compiled(compiled[0])
        if compiled
        else _summary(len(layers), are_torchs=len(torchs) == len(calls)),
        facts=_facts(first, layers, at_start, hidden=hidden),
        fix="torch.jit cannot compile SyncBatchNorm: train the model without "
        "torch.jit and with SyncBatchNorm; or freeze batch norm, or use GroupNorm"
        if compiled
        else "convert to SyncBatchNorm, freeze batch norm, or use GroupNorm",
        code=("# without torch.jit\n" if compiled else "")
        + _conversion(torchs, one_by_one=are_alone),
        code_rests_on="all modules that differ are batch norms of torch"
        if len(torchs) == len(calls)
        else "",
        fixes=tuple(dict.fromkeys(fixes)),
        module=first.name,
        speculative=case.outputs_agree,
    )
    if len(torchs) < len(calls) or found.speculative:
        return found
    return replaced(found, fallback=_frozen(found))


def _facts(
    first: ModuleCall, layers: list[str], at_start: list[str], *, hidden: bool
) -> tuple[str, ...]:
    """Returns the facts; `at_start`: statistics that differ at the start, on all ranks."""
    layer = f"{module(first.name)} ({first.kind})"
    found = [
        f"the output of {layer} is multiplied by zero in the first step: its "
        "running statistics differ after the step, and so do gradients"
        if hidden
        else f"given the reference's input, the output of {layer} differs from the "
        f"single-process output: relative difference {number(first.rel_diff or 0)}",
        f"modules that differ in this way: {names(module(name) for name in layers)}",
    ]
    if at_start:
        found.append(
            f"before the first step {at_start[0]} differs from the single-process "
            "value on all ranks: model() calls batch norms, too"
        )
    return tuple(found)


def _of_compiled(call: ModuleCall) -> str:
    """Returns the summary if torch.jit has compiled the batch norms."""
    return (
        f"batch norm inside {module(call.name)}, compiled by torch.jit, normalises "
        "with the mean and variance of the rank's shard"
    )


def _summary(number_of: int, *, are_torchs: bool) -> str:
    """Returns the cause; a custom norm may use the smallest and the largest value."""
    by = "the mean and variance" if are_torchs else "statistics"
    norms = (
        f"{number_of} batch norms normalise"
        if number_of > 1
        else "a batch norm normalises"
    )
    return f"{norms} with {by} of the rank's shard"


def detect_in_replicas(case: DataParallelCase) -> Proposal | None:
    """Proposes it for DataParallel alone: ranks may synchronise, replicas cannot."""
    if not case.has_batch_norm:
        return None
    return Proposal(
        summary="batch norm normalises with the mean and variance of the replica's shard",
        facts=(
            "with batch norm frozen in both runs, DataParallel equals the "
            "single-process run",
        ),
        fix="use DistributedDataParallel with SyncBatchNorm, as DataParallel "
        "cannot synchronise batch norm; or freeze batch norm, or use GroupNorm",
        code=_conversion([]),
        fixes=(_FROZEN,),
        speculative=True,
    )


def _frozen(found: Proposal) -> Proposal:
    """Returns the proposal for samples in other micro-batches than in the reference.

    The single-process run has no micro-batch with the samples of the ranks'.
    """
    return replaced(
        found,
        facts=(
            *found.facts,
            "with batch norm frozen in both runs, the runs are equal",
        ),
        fix="freeze batch norm, or use GroupNorm; even SyncBatchNorm would "
        "normalise over other samples than the single-process run",
        code="for norm in batch_norms:\n    norm.eval()  # after every model.train()",
        code_rests_on="",
        safe=False,
        fixes=(_FROZEN,),
    )


def _are_right_elsewhere(case: Case, layers: list[str]) -> bool:
    """Returns whether others of torch's batch norms return the single process's rows.

    Those of a ghost batch norm do, which is called for pieces of a shard: synchronised
    over ranks they would not. If pieces cannot be matched, their caller is judged. One
    that is multiplied by zero shows in its statistics.
    """
    known = {*layers, *(m.name for m in [*case.diverging(), *silenced(case)])}
    judged: dict[str, float] = {}
    for m in case.modules():
        if m.rel_diff is not None:
            judged[m.name] = max(m.rel_diff, judged.get(m.name, 0.0))
    others = {
        m.name: m.caller
        for m in case.modules()
        if m.is_batch_norm and m.writes_buffers and not m.is_synchronized
        if m.name not in known
    }
    found = (judged.get(m, judged.get(by)) for m, by in others.items() if m or by)
    return any(diff is not None and diff <= case.close for diff in found)


def _conversion(torchs: list[ModuleCall], *, one_by_one: bool = False) -> str:
    """Returns the lines that convert: torch's own keeps nothing but batch norm.

    `one_by_one`: these alone, as there are others.
    """
    derived = [m.kind for m in torchs if m.kind not in _PLAIN]
    if derived:
        lines = [
            f"# not torch's conversion: it loses what {derived[0]} adds to batch norm",
            "model = timm.layers.convert_sync_batchnorm(model)  # or another",
        ]
    elif one_by_one and torchs:
        layers = list(dict.fromkeys(m.name for m in torchs))
        lines = [
            f"for name in {layers!r}:  # not the others",
            "    norm = model.get_submodule(name)",
            "    norm = torch.nn.SyncBatchNorm.convert_sync_batchnorm(norm)",
            "    model.set_submodule(name, norm)",
        ]
    else:
        lines = ["model = torch.nn.SyncBatchNorm.convert_sync_batchnorm(model)"]
    return "\n".join([*lines, "model = DistributedDataParallel(model)"])


def _normalises(call: ModuleCall) -> bool:
    own = call.is_batch_norm or call.normalises
    return own and not (call.collectives or call.is_synchronized)
