"""A parameter is ready twice in one backward.

What it means
A parameter's gradient is ready twice in one backward.

Why it happens
With find_unused_parameters=True a parameter that the forward's graph does not hold
is taken as ready at once; a loss that uses it outside forward makes it ready again.
Several forwards or accumulations in one backward do the same.

How it was found
DDP itself raises that it marks a variable ready only once, no backward is nested,
the output is visible, and averaging by hand makes the run equal.

Example
    import torch
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel as DDP
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh())
    model.classes = nn.Parameter(torch.randn(3, 8))
    batch = torch.randn(8, 4), torch.arange(8) % 3
    def wrap(model):
        return DDP(model, find_unused_parameters=True)
    def train_step(model, optimizer, batch):
        table = (model.module if isinstance(model, DDP) else model).classes
        optimizer.zero_grad()
        logits = model(batch[0]) @ table.T
        nn.functional.cross_entropy(logits, batch[1]).backward()
        optimizer.step()

Fix
Use parameters inside forward, or leave find_unused_parameters off. The example is
mended by:

    wrap = DDP

Not this rule if
Nested backwards: graph/reentrant-checkpoint.

References
https://github.com/pytorch/pytorch/issues/105723
https://github.com/huggingface/transformers/issues/24970
"""

from __future__ import annotations

from ddpcheck.diagnose.facts.case import Case, Proposal

SLUG = "graph/shared-parameter"
LINK = "reduce"

_READY_TWICE = ("mark a variable ready only once", "marked as ready twice")


def detect(case: Case) -> Proposal | None:
    """Proposes it where DDP says so, and no nested backward explains it."""
    if not case.reduce_is_broken or any(case.rank_facts("nested_backwards", 0)):
        return None
    if not any(text in case.fault_text for text in _READY_TWICE):
        return None
    if any(case.rank_facts("opaque_output", False)):
        return None
    if any("BB" in events for events in case.rank_facts("events", "")):
        return None  # ddp/multi-backward
    finds = any(case.rank_facts("find_unused", False))
    facts = [f"DDP raises: {case.fault_text[:100]}"]
    if finds:
        facts.append(
            "find_unused_parameters=True: what is not in the forward's graph is taken "
            "as ready, and gets its gradient later"
        )
    return Proposal(
        slug=SLUG,
        link=LINK,
        summary="a parameter gets its gradient ready twice in one backward: it is used "
        "outside the forward too, or in several forwards",
        facts=tuple(facts),
        fix="use every parameter inside one forward of the wrapped model, or "
        "static_graph=True",
        by_hand=True,
    )
