"""Ranks have different numbers of batches.

What it means
Ranks have different numbers of batches, and those with more wait for the others.

Why it happens
Batches are made of what a shard holds: by lengths, by a budget of tokens, or until the
shard is used up. Every backward of DDP needs all ranks.

How it was found
A rank had left a step with fewer backwards than another began in it, each after its
forward, and with all samples of its shard seen. A run in which ranks without a batch
left go on with empty ones, until all have none, decides.

Example
    import torch
    from torch import nn
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    sizes = torch.tensor([1.0] * 6 + [2.0] * 6)
    batch = torch.randn(12, 4), sizes
    def batches(sizes):
        return (sizes.cumsum(0) - sizes) // 6  # of at most 6 together
    def train_step(model, optimizer, batch):
        rows, sizes = batch
        optimizer.zero_grad()
        number = batches(sizes)
        for i in number.unique():
            (model(rows[number == i]).square().sum() / len(rows)).backward()
        optimizer.step()

Fix
The same number of batches on all ranks: the last ones empty, or with a loss times 0;
for batches with an update each join(), or a flag that all ranks agree on. The example
is mended by:

    def batches(sizes):
        return torch.arange(len(sizes)) // 3

Not this rule if
A rank runs a batch and leaves out its backward, or leaves out samples:
graph/skipped-backward.

References
https://github.com/dmlc/dgl/issues/2539
https://github.com/Lightning-AI/litData/issues/233
"""

from __future__ import annotations

from ddpcheck.diagnose.facts import rank_table, rows
from ddpcheck.diagnose.facts.case import Case, Proposal
from ddpcheck.diagnose.facts.faults import backwards_of_ranks, busy_ranks, skipped_in
from ddpcheck.diagnose.facts.text import listed

SLUG = "data/uneven-batches"
LINK = "data"


def detect(case: Case) -> Proposal | None:
    """Proposes it where a rank has had all its batches, and another has more."""
    step = skipped_in(case)
    if step is None or not backwards_of_ranks(case) or busy_ranks(case.run):
        return None
    if not rows.are_used_up(case, step):
        return None
    counts = rows.calls_of_ranks(case, step)
    return Proposal(
        slug=SLUG,
        link=LINK,
        summary="ranks have different numbers of batches: those with more wait for "
        "gradients that the others do not have",
        facts=(
            f"batches begun in step {step + 1}, per rank: {listed(counts)}; a rank that "
            "has fewer has used all samples of its shard",
            *rank_table.facts(case),
        ),
        fix="give all ranks as many batches, the last ones empty or with a loss times 0",
        code="with model.join():  # for batches with an update each",
        fixes=("data.filled",),
        evidence={"ranks": rank_table.rows(case)},
        needs_no_proof=True,
    )
