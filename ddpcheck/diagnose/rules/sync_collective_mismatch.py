"""Ranks call different collectives.

What it means
The ranks do not call the same collectives in the same order.

Why it happens
Collectives are matched by order. One that a single rank calls meets another of the
other ranks: a hang, a timeout, or a rank killed by SIGABRT.

How it was found
The ranks had called different numbers of collectives when one of them raised, hung
or died. It is told, not verified: any fix that makes all ranks do the same ends the
wait.

Example
    import torch
    import torch.distributed as dist
    from torch import nn
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    batch = torch.randn(8, 4), torch.arange(8) % 3
    def train_step(model, optimizer, batch):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(batch[0]), batch[1]).backward()
        optimizer.step()
        if dist.is_initialized() and dist.get_rank() == 0:
            dist.all_reduce(torch.zeros(1))

Fix
Call the same collectives on all ranks. The example is mended by:

    def train_step(model, optimizer, batch):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(batch[0]), batch[1]).backward()
        optimizer.step()

Not this rule if
The ranks differ in the backwards they began: graph/skipped-backward.

References
https://github.com/huggingface/transformers/issues/35387
https://github.com/lucidrains/vector-quantize-pytorch/issues/25
"""

from __future__ import annotations

from ddpcheck.diagnose.case import Case, Proposal
from ddpcheck.diagnose.faults import (
    busy_ranks,
    collectives_of_ranks,
    skips_backward,
)
from ddpcheck.diagnose.text import listed

SLUG = "sync/collective-mismatch"
LINK = "reduce"


def detect(case: Case) -> Proposal | None:
    """Proposes it where the numbers of collectives differ between ranks."""
    calls = collectives_of_ranks(case)
    if not calls or len(set(calls)) == 1 or busy_ranks(case):
        return None
    if skips_backward(case):
        return None  # graph/skipped-backward: it meets those of its next step
    return Proposal(
        slug=SLUG,
        link=LINK,
        summary="the ranks do not call the same collectives: one meets another of the other "
        "ranks",
        facts=(
            f"collectives called by the target until then, per rank: {listed(calls)}",
            *[f"rank {f.rank}: {f.summary}" for f in case.run.faults[:3]],
        ),
        fix="call the same collectives in the same order on all ranks, with a zero where a "
        "rank has nothing to add",
        code="dist.all_reduce(count)  # outside any condition on the rank's own data",
    )
