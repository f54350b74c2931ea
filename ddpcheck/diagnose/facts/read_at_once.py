"""Buffers that a step writes from the local shard, and reads before it ends.

Examples are a count of items that a loss subtracts, or a threshold computed from the
shard: the gradient is wrong at once, and a loss or forward of all rows would fix it as
well. Setting only the buffers to the single-process values is a more precise proof.
"""

from __future__ import annotations

from ddpcheck.diagnose.facts.buffers import Owners, wrong_at_once
from ddpcheck.diagnose.facts.case import Case, Proposal
from ddpcheck.run.intervention import Substitute


def proposal(case: Case, slug: str, *, sent: bool) -> Proposal | None:
    """Returns the proposal, on trial, if gradients differ with buffers in step 1.

    `sent`: whether DDP broadcasts rank 0's buffers before its forward; None is returned
    if that is not so.
    """
    owner = wrong_at_once(case)
    ranks = case.probed.ranks if case.probed else ()
    if any(rank.written_parameters for rank in ranks):
        return None  # state/forward-writes-parameter: a buffer may be made with them
    if owner is None or owner.are_broadcast != sent:
        return None
    return Proposal(
        slug=slug,
        link="forward",
        summary=_summary(owner),
        facts=(
            *owner.facts,
            "when they are set to the single-process values as soon as they are "
            "written, the runs are equal",
        ),
        fix="all-reduce the written value, on all ranks, before it is read",
        fixes=(Substitute(boundary="writes", names=tuple(owner.modules)),),
        module=owner.modules[0],
        speculative=True,
        before_wide=True,
    )


def _summary(owner: Owners) -> str:
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
