"""Detects data/batch-layout."""

from __future__ import annotations

from ddpcheck.diagnose.facts.case import Case, Proposal
from ddpcheck.diagnose.facts.events import input_diff
from ddpcheck.diagnose.facts.experiments import other_order
from ddpcheck.diagnose.probes.evidence import ModuleCall
from ddpcheck.diagnose.rules.loss_factors import (
    loss_empty_shard,
    loss_local_normalizer,
)
from ddpcheck.run.intervention import Switch

SLUG = "data/batch-layout"
LINK = "data"

_ORDERS = (1, 2, 3, 4)


def detect(case: Case) -> Proposal | None:
    """Proposes strided shards if loss, module or training step relates samples."""
    if not _may_be_torn(case):
        return None
    # Samples may be related by their targets alone: then no factor per rank explains
    # the loss's gradient.
    unexplained = case.has_cuts and case.rank_ratios is None
    in_loss = bool(case.couples) or unexplained
    mixing = case.diverging()
    in_step = input_diff(case) > case.close
    if not (in_loss or in_step or mixing):
        return None
    if not in_loss and any(_is_norm(m) for m in mixing):
        return None  # strided shards may have the statistics of the batch
    who = "the loss" if in_loss else "a module" if mixing else "the training step"
    count = loss_local_normalizer.detect(case)
    is_exchanged = case.loss_asks_others and count and count.last_resort
    if loss_empty_shard.detect(case) or (count and not is_exchanged):
        return None  # strided shards may have equal counts by coincidence
    if not _holds_in_other_orders(case):
        return None  # strided shards may have equal numbers of the hardest samples
    world = case.world_size
    return Proposal(
        summary="dimension 0 of the batch has a structure, such as two views one "
        "after the other, and contiguous shards separate rows that belong together",
        facts=(
            f"{who} relates samples to each other",
            f"strided shards (samples {world} apart) keep these rows together: "
            "with them the ranks train as the single-process run does",
        ),
        fix="shard by group, or put each view in its own tensor",
        code="x = torch.stack(x.chunk(num_views), dim=1)  # 0: the sample",
        fixes=(Switch.STRIDED_SHARDS,),
        speculative=True,
    )


def _may_be_torn(case: Case) -> bool:
    """Returns whether only the choice of samples in the shards may be wrong."""
    if case.world_size == 1 or case.run.faults:
        return False
    if case.loss_asks_others and case.rank_ratios is not None:
        return False  # the loss reduces a count or a sum
    if case.probed is not None and case.probed.reference.micros:
        return False  # strided shards have micro-batches of the single-process samples
    return case.run.ranks_agree and len(set(case.run.shard_sizes)) == 1


def _holds_in_other_orders(case: Case) -> bool:
    """Returns whether, in other orders too, only strided shards give equal runs.

    A structure of positions in the batch does not depend on which samples are there:
    contiguous shards break it in any order. By coincidence each of two shards has half
    of the hardest samples in two orders of five.
    """
    return all(_holds_in(case, order) for order in _ORDERS)


def _holds_in(case: Case, order: int) -> bool:
    strided = case.result(other_order(order, Switch.STRIDED_SHARDS))
    if strided.verdict == "not-checked":
        return True  # the single-process run does not train in it: no evidence
    return strided.verdict == "equivalent" and (
        case.result(other_order(order)).verdict == "divergent"
    )


def _is_norm(call: ModuleCall) -> bool:
    return call.is_batch_norm or call.normalises
