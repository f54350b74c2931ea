"""Gradients are divided by ranks that have joined.

What it means
Gradients are divided by the number of all ranks, also of those without data left.

Why it happens
join() shadows the reductions of ranks that are done, with zeros, and by default still
divides by the world size: the last updates are smaller than they should be.

How it was found
join was entered, and ranks have different numbers of batches. A run that divides by
the ranks that have not joined decides; one that divides by all, where join does not.

Example
    import contextlib
    import torch
    from torch import nn
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    batch = torch.randn(8, 3, 4), torch.tensor([3] * 4 + [2] * 4)
    def together(model):
        return model.join() if hasattr(model, "join") else contextlib.nullcontext()
    def train_step(model, optimizer, batch):
        rows, lengths = batch
        with together(model):
            for i in range(int(lengths.max())):
                optimizer.zero_grad()
                model(rows[lengths > i, i]).square().mean().backward()
                optimizer.step()

Fix
divide_by_initial_world_size=False. The example is mended by:

    def together(model):
        if not hasattr(model, "join"):
            return contextlib.nullcontext()
        return model.join(divide_by_initial_world_size=False)

Not this rule if
All ranks have as many batches, or gradients are wrong before the first rank joins.

References
https://github.com/pytorch/pytorch/issues/38174
https://github.com/pytorch/pytorch/issues/44425
"""

from __future__ import annotations

from ddpcheck.diagnose.facts.case import Case, Proposal
from ddpcheck.diagnose.facts.text import listed

SLUG = "sync/join-divisor"
LINK = "reduce"


def detect(case: Case) -> Proposal | None:
    """Proposes the other divisor where ranks join early."""
    batches = [events.count("F") for events in case.rank_facts("events", "")]
    joins = {flag for flags in case.rank_facts("joins", []) for flag in flags}
    if len(joins) != 1 or len(set(batches)) < 2:  # noqa: PLR2004
        return None
    (counts_all,) = joins
    return Proposal(
        slug=SLUG,
        link=LINK,
        summary="join divides gradients by the number of all ranks, also of those that "
        "have no data left"
        if counts_all
        else "join divides gradients by the ranks that have data left, and the loss "
        "counts all of them already",
        facts=(
            f"join was entered with divide_by_initial_world_size={counts_all}",
            f"batches in all steps, per rank: {listed(batches)}",
        ),
        fix="divide by the ranks that still have data"
        if counts_all
        else "divide by all ranks: the loss is already multiplied by their number",
        code=f"model.join(divide_by_initial_world_size={not counts_all})",
        fixes=("ddp.join_left" if counts_all else "ddp.join_all",),
    )
