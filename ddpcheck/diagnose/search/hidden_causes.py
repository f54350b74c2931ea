"""A cause that the fix of another cause hides, known from the ranks' own behaviour.

With the global loss on every rank, a learning rate computed from it is the same on all
ranks: the run that fixes the loss fixes the rate as well. If the loss is computed
inside forward, modules before it get all samples, too, and so do norms. Parameters of
the loss get their whole gradient on every rank, in DDP or not.
"""

from __future__ import annotations

import dataclasses

from ddpcheck.diagnose.facts.case import Case, Proposal
from ddpcheck.diagnose.facts.events import ranks_disagree
from ddpcheck.diagnose.facts.loss import doubled, growth_fact, is_sum
from ddpcheck.diagnose.facts.text import listed
from ddpcheck.diagnose.rules import (
    ddp_wrapper_missing,
    loss_factors,
    norm_local_batch_stats,
    sync_control_desync,
    sync_scaler_desync,
)
from ddpcheck.diagnose.search import update_alone
from ddpcheck.diagnose.search.causes import Cause
from ddpcheck.run.intervention import GlobalLoss, found


def hidden(case: Case, causes: list[Cause]) -> list[Cause]:
    """Returns what the ranks' own numbers show in addition to these causes."""
    slugs = {cause.proposal.slug for cause in causes}
    fixes = [fix for cause in causes for fix in cause.proposal.fixes]
    hiding = found(fixes, GlobalLoss)
    if case.run.faults or hiding is None:
        return []
    proposals = []
    # Where it names modules, those before them see the whole batch.
    if norm_local_batch_stats.SLUG not in slugs and any(hiding.modules):
        proposals.append(_norms(case))
    if loss_factors.DOUBLE not in slugs:
        proposals.append(_scale(case))
    if sync_control_desync.SLUG not in slugs:
        proposals.append(_desync(case))
    if sync_scaler_desync.SLUG not in slugs:
        proposals.append(_scales(case))
    if ddp_wrapper_missing.SLUG not in slugs:
        proposals.append(_outside(case))
    known = slugs | {p.slug for p in proposals if p is not None}
    proposals.append(update_alone.judge(case, known))
    return [Cause(p, before=causes[0].before) for p in proposals if p is not None]


def _norms(case: Case) -> Proposal | None:
    found = norm_local_batch_stats.detect(case)
    if found is None:
        return None
    told = (
        "no run separates this cause: when the loss gets all samples, its norms do, too"
    )
    return dataclasses.replace(found, facts=(*found.facts, told), fixes=())


def _scale(case: Case) -> Proposal | None:
    """Proposes the factor W of a mean, which a loss without a process group lacks."""
    world, twice = case.world_size, doubled(case)
    factors = [r.group_factor for r in case.probed.ranks] if case.probed else []
    if not factors or any(
        f is None or abs(f / world - 1) > case.close for f in factors
    ):
        return None
    if twice is None or is_sum(case) or case.loss_collectives:
        return None  # a sum, or one over a count of all samples, needs it
    told = (
        f"the loss's gradient is {world} times its value without a process group; "
        + growth_fact(case),
        "no run separates this cause: when the loss gets all samples, it has no "
        "process group",
    )
    row = loss_factors.TABLE["whole loss", "W", ""]
    return dataclasses.replace(loss_factors.proposal(case, row), facts=told)


def _desync(case: Case) -> Proposal | None:
    found = _own_numbers(case)
    if found is None:
        return None
    step, name, values = found
    return sync_control_desync.unproven(
        f"{name} at the update of step {step + 1}: {listed(values)} on the ranks",
        "no run separates this cause: when all ranks have the same loss, they make "
        "the same decision",
    )


def _scales(case: Case) -> Proposal | None:
    found = sync_scaler_desync.by_scales(case)
    if found is None:
        return None
    told = (
        "no run separates this cause: when all ranks have the same loss, they "
        "use the same scale"
    )
    return dataclasses.replace(
        found, facts=(*found.facts, told), fixes=(), needs_no_proof=False
    )


def _outside(case: Case) -> Proposal | None:
    found = ddp_wrapper_missing.detect(case)
    if found is None:
        return None
    told = (
        "no run separates this cause: when all ranks have the same loss, they "
        "agree anyway"
    )
    return dataclasses.replace(found, facts=(*found.facts, told), by_hand=False)


def _own_numbers(case: Case) -> tuple[int, str, list[float]] | None:
    """Returns (step, name, value per rank) of the first number that differs."""
    told = [f.get("schedule", []) for f in case.ranks]
    if len({len(rank) for rank in told}) != 1:
        return None
    for updates in zip(*told, strict=True):
        step = updates[0][0]
        for groups in zip(*(groups for _, groups in updates), strict=False):
            for name in groups[0]:
                values = [group.get(name, 0.0) for group in groups]
                if len(set(values)) > 1 and ranks_disagree(case, "weights", step):
                    return step, name, values
    return None
