"""Detects collective/layout."""

from __future__ import annotations

from ddpcheck.diagnose.facts.case import Case, Proposal
from ddpcheck.diagnose.facts.experiments import averaged_by_hand, one_rank
from ddpcheck.diagnose.facts.loss import (
    differs_with_equal_counts,
    global_loss_fix,
    ratio_evidence,
)
from ddpcheck.diagnose.facts.text import names, number
from ddpcheck.diagnose.facts.unused import reduces_by_hand
from ddpcheck.diagnose.proposal import replaced
from ddpcheck.run.intervention import OffsetLabels, Switch
from ddpcheck.run.spec import Defect

SLUG = "collective/layout"
LINK = "loss"
_REORDER = (
    "fix the layout (labels offset by rank, cat or stack, order of views); test that a "
    "group of one rank gives the same as no group"
)
_LABELS = "with labels that start at the rank's first row the loss is right"


def detect(case: Case) -> Proposal | None:
    """Proposes it if the loss is wrong even with the same shard on all ranks."""
    gaps = [defect for defect in case.defects() if not defect.is_dense]
    if gaps:
        return _with_gaps(gaps)
    found = _of_rows(case)
    if found is None and case.reduce_is_broken and reduces_by_hand(case):
        return _detect_averaged_copies(case)
    return found


def _of_rows(case: Case) -> Proposal | None:
    """Proposes it for a loss that sees the gathered samples in another order."""
    if case.probed is None or not case.has_cuts or case.loss_is_sound:
        return None
    if (
        not case.loss_asks_others
        or case.losses_replicate
        or case.mean_loss_power is not None  # rows out of place have another loss
        or case.rank_ratios is not None  # and another gradient, by no one factor
    ):
        return None
    shown = _seen_without_counts(case)
    if not shown and not case.couples:
        return None
    are_labels = not shown or _are_labels(case)
    # With all counts equal the loss is right: labels may still refer to the rows of
    # another rank, or views be joined rank by rank, which only a run can show.
    found = Proposal(
        summary="the loss joins the gathered tensors in a layout other than the "
        "single-process one: order, axis or labels",
        facts=(
            f"{case.loss_collectives} collectives called in one step",
            *shown,
            *([_LABELS] if are_labels else []),
        ),
        fix="add the number of rows of the ranks before to the labels, which count the "
        "rank's own rows from 0"
        if are_labels
        else _REORDER,
        code="labels = torch.arange(len(a)) + dist.get_rank() * len(a)"
        if are_labels
        else "",
        fixes=(_offset(case),) if are_labels else global_loss_fix(case),
        speculative=not shown,
        evidence=ratio_evidence(case),
    )
    return replaced(found, fallback=_of_blocks(found, _of_the_own_rows(case, found)))


def _are_labels(case: Case) -> bool:
    """Returns whether only labels are wrong, apart from the reduction."""
    if not case.reduce_is_broken:
        return False
    offset = averaged_by_hand("labels offset by rank", _offset(case))
    return case.result(offset).verdict == "equivalent"


def _of_the_own_rows(case: Case, found: Proposal) -> Proposal | None:
    """Returns the proposal for own rows at the position of the first rank's rows."""
    assert case.probed is not None
    moves = any(rank.moves_rows for rank in case.probed.ranks)
    world = case.world_size
    right = [
        abs(ratio - world) <= case.close * world and residual <= case.close
        for ratio, residual in case.ratios()
    ]
    if not moves or not right[0] or any(right[1:]):
        return None
    return replaced(
        found,
        facts=(
            found.facts[0],
            "the gradient at the outputs equals the single-process one on the "
            "first rank, and differs on all others",
        ),
        fix=(
            "put the rank's own rows, with their gradient, at the rank's own position"
        ),
        code="",
        fixes=global_loss_fix(case),
    )


def _of_blocks(found: Proposal, other: Proposal | None) -> Proposal:
    """Returns the proposal for views that are gathered rank by rank."""
    return replaced(
        found,
        facts=(
            found.facts[0],
            "with the gathered views joined one view after the other the loss is right",
        ),
        fix="gather each view separately, or reorder the gathered rows as in the "
        "single-process run: all samples of the first view, then all of the second",
        code="all_gather = torch.distributed.nn.all_gather\n"
        "views = [torch.cat(all_gather(v.contiguous())) for v in views]\n"
        "features = torch.cat(views)",
        fixes=(Switch.BLOCK_ORDER,),
        fallback=other,
    )


def _offset(case: Case) -> OffsetLabels:
    """Returns the fix; a forward that gathers nothing counts its own rows."""
    gathers = any(call.collectives for call in case.modules())
    sizes = case.run.shard_sizes
    samples = sum(sizes) if len(set(sizes)) > 1 else 0
    return OffsetLabels(within_forward=gathers, samples=samples)


def _with_gaps(gaps: list[Defect]) -> Proposal:
    return Proposal(
        summary="a collective is called on a view with gaps, and uses the memory "
        "behind the view instead of its elements",
        facts=tuple(
            f"{defect.what}: relative difference {number(defect.rel_diff)} from what "
            "its definition gives"
            for defect in gaps[:3]
        ),
        fix="give collectives contiguous tensors and copy the result back",
        code="part = tensor[:, 0].contiguous()\n"
        "dist.all_reduce(part)\n"
        "tensor[:, 0] = part",
        fixes=(Switch.EXACT_COLLECTIVES,),
    )


def _detect_averaged_copies(case: Case) -> Proposal:
    """Proposes it as speculative for gradients that are averaged by hand, in copies."""
    outside = case.outcome.facts().get("outside", [])
    return Proposal(
        link="reduce",
        summary="non-contiguous gradients are averaged by hand in a copy that "
        "reshape makes, so the gradients themselves do not change",
        facts=(
            f"{len(outside)} trained parameters outside every DDP object: "
            f"{names(outside)}",
            "with contiguous gradients the runs are equal",
        ),
        fix="reduce the gradient itself, or copy the result back",
        code="flat = p.grad.reshape(-1)\ndist.all_reduce(flat)\n"
        "p.grad.copy_(flat.view_as(p.grad))",
        fixes=(Switch.CONTIGUOUS_GRADIENTS,),
        speculative=True,
    )


def _seen_without_counts(case: Case) -> list[str]:
    """Returns the variations that differ though all ranks have the same count."""
    shown = []
    if case.result(one_rank()).verdict == "divergent":
        shown.append(
            "the runs differ even with one rank, where there is nothing to reduce"
        )
    # If no sample depends on another, or all are summed, rows have no position.
    moves = any(rank.moves_rows for rank in case.probed.ranks) if case.probed else False
    if moves and case.couples is not False and differs_with_equal_counts(case):
        shown.append(
            "the runs differ even with the same shard on every rank, where all "
            "counts agree"
        )
    return shown
