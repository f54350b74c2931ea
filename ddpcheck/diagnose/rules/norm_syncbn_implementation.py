"""Detects norm/syncbn-implementation."""

from __future__ import annotations

from ddpcheck.diagnose.facts.case import Case, Proposal
from ddpcheck.diagnose.facts.text import names, number
from ddpcheck.diagnose.probes.evidence import ModuleCall
from ddpcheck.run.intervention import GlobalModule, Interventions, SyncBatchNorm, found

SLUG = "norm/syncbn-implementation"
LINK = "forward"


def detect(case: Case) -> Proposal | None:
    """Proposes it if a module that calls collectives differs in forward or backward."""
    # Of torch's own, those whose rows are wrong: over which ranks may be. A fix in force
    # has synchronised others.
    is_fixed = found(case.outcome.spec.fixes, SyncBatchNorm) is not None
    calls = [
        m
        for m in case.modules()
        if m.name
        and (
            m.collectives or (m.is_synchronized and _is_wrong(m, case) and not is_fixed)
        )
    ]
    inner = [
        m for m in calls if m.writes_buffers or m.is_batch_norm or m.is_scale_invariant
    ]
    if not inner:
        return None if calls else _detect_autograd_function(case)
    wrong = [m for m in inner if _is_wrong(m, case)]
    judged = case.loss_is_sound and not case.loss_is_global and case.rest_is_broken
    if not wrong and not (judged and case.first_broken("gradients") == 0):
        return None
    first = (wrong or inner)[0]
    what = (
        "its output differs from the single-process output: relative difference "
        f"{number(first.rel_diff or 0)}"
        if wrong
        else "its output and the loss are right, and the gradients are not"
    )
    sizes = set(case.run.shard_sizes)
    uneven = (
        f"; the shards hold {', '.join(map(str, case.run.shard_sizes))} samples"
        if len(sizes) > 1
        else ""
    )
    asks = f"it calls {first.collectives} collectives and " if first.collectives else ""
    if any(m.is_synchronized for m in inner):
        fixes: Interventions = (SyncBatchNorm(),)
    else:
        fixes = tuple(dict.fromkeys(GlobalModule(name=m.name) for m in inner))
    return Proposal(
        summary=f"{first.name} ({first.kind}) synchronises its statistics over "
        "ranks, but the result is not the statistics of the global batch",
        facts=(f"{first.name}, given the reference's input: {asks}{what}{uneven}",),
        fix="sum the moments and the counts over ranks using collectives with "
        "autograd, then divide",
        fixes=fixes,
        module=first.name,
    )


def _detect_autograd_function(case: Case) -> Proposal | None:
    """Proposes it as speculative for a norm that is an autograd function, and no module.

    The function's backward calls collectives as well. The model that calls the function
    sends no samples, its outputs are right, and the gradients through it are wrong.
    """
    asks = [m for m in case.modules() if not m.name and m.collectives]
    wrong = case.mismatched("gradients", 0)
    is_of_some = 0 < len(wrong) < case.facts["num_tensors"]
    ranks = case.probed_ranks
    is_one = any(f.get("collectives_in_backward") for f in case.ranks)
    is_one &= not any(f.get("comm_hooks") for f in case.ranks)
    moves = any(rank.moves_rows for rank in ranks)
    judged = case.loss_is_sound and not case.loss_is_global and case.outputs_agree
    if not (asks and is_one and is_of_some and judged and case.rest_is_broken) or moves:
        return None
    if any(_is_wrong(m, case) for m in asks) or case.first_broken("gradients") != 0:
        return None
    return Proposal(
        link="backward",
        summary="the model's forward synchronises statistics over ranks, but its "
        "backward is not the backward of the global statistics",
        facts=(
            f"the model's own forward calls {asks[0].collectives} collectives, its "
            f"output and the loss are right, and {len(wrong)} gradients are wrong: "
            f"{names(sorted(wrong))}",
        ),
        fix=(
            "in backward, sum over ranks what forward sums over ranks, and divide "
            "by the same counts"
        ),
        fixes=(GlobalModule(),),
        module="",
        speculative=True,
    )


def _is_wrong(call: ModuleCall, case: Case) -> bool:
    return (call.rel_diff or 0) > case.close
