"""Samples that belong together lie in different shards.

What it means
The loss, or a module, relates samples that lie in different shards.

Why it happens
Dimension 0 holds a structure, such as two views one after the other (n, n + B / 2),
groups or augmentations. Contiguous shards cut it.

How it was found
d loss / d output at some samples changes with the outputs of others, or a module
mixes samples, or no factor per rank explains d loss / d output; the ranks agree; and a
run with shards of every W-th sample is equal: samples that belong together share a
rank then.

Example
    import torch
    from torch import nn
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    views = torch.randn(2, 8, 4)
    batch = views.flatten(0, 1), torch.zeros(16)
    def loss(output, _):
        first, second = output.chunk(2)
        return -nn.functional.cosine_similarity(first, second).mean()

Fix
Make dimension 0 the sample, and the views a dimension of their own. The example is
mended by:

    batch = views.transpose(0, 1).contiguous(), torch.zeros(8)
    def loss(output, _):
        first, second = output.unbind(1)
        return -nn.functional.cosine_similarity(first, second).mean()

Not this rule if
Strided shards differ too: the loss itself couples samples, loss/batch-coupled.

References
-
"""

from __future__ import annotations

from ddpcheck.diagnose.case import Case, Proposal
from ddpcheck.diagnose.probes.evidence import ModuleCall
from ddpcheck.diagnose.rules import loss_empty_shard, loss_local_normalizer

SLUG = "data/batch-layout"
LINK = "data"


def detect(case: Case) -> Proposal | None:
    """Proposes strided shards where the loss or a module relates samples."""
    if case.world_size == 1 or case.run.faults or case.loss_asks_others:
        return None
    if not case.run.ranks_agree:
        return None  # not a fault of what the shards hold
    # Samples may be related by their targets alone: then no factor per rank explains
    # the loss's gradient.
    unexplained = case.has_cuts and case.rank_ratios is None
    in_loss = bool(case.couples) or unexplained
    mixing = case.diverging()
    if not in_loss and (not mixing or any(_is_norm(m) for m in mixing)):
        return None  # strided shards may have the statistics of the batch
    if len(set(case.run.shard_sizes)) > 1:
        return None
    if loss_empty_shard.detect(case) or loss_local_normalizer.detect(case):
        return None  # strided shards may have equal counts by chance
    world = case.world_size
    return Proposal(
        slug=SLUG,
        link=LINK,
        summary="dimension 0 of the batch has a structure, such as two views one after "
        "the other, and contiguous shards tear apart what belongs together",
        facts=(
            f"{'the loss' if in_loss else 'a module'} relates samples to each other",
            f"shards of every {world}th sample keep what belongs together: with them "
            "the ranks train as one process does",
        ),
        fix="shard by group, or give each view a tensor of its own",
        code="x = torch.stack(x.chunk(num_views), dim=1)  # dimension 0: the sample",
        fixes=("data.strided",),
        speculative=True,
    )


def _is_norm(call: ModuleCall) -> bool:
    return call.is_batch_norm or call.normalises
