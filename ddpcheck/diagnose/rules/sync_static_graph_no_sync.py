"""no_sync with static_graph breaks DDP's count of the first iteration.

What it means
static_graph=True is used with no_sync.

Why it happens
DDP takes the backward of an unsynchronised micro-batch for its first iteration: an
internal assertion in some versions of torch (2.13), local gradients in others.

How it was found
DDP was built with static_graph=True, the step enters no_sync, and gradients are not
the mean of the local ones. DDP built anew without static_graph decides.

Example
    import contextlib
    import torch
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel as DDP
    torch.manual_seed(0)
    model, batch = nn.Linear(4, 3), (torch.randn(8, 4), torch.arange(8) % 3)
    def wrap(model):
        return DDP(model, static_graph=True)
    def train_step(model, optimizer, batch):
        optimizer.zero_grad()
        for i, (x, y) in enumerate(zip(batch[0].chunk(2), batch[1].chunk(2))):
            held = i == 0 and isinstance(model, DDP)
            with model.no_sync() if held else contextlib.nullcontext():
                (nn.functional.cross_entropy(model(x), y) / 2).backward()
        optimizer.step()

Fix
Leave static_graph off, or accumulate without no_sync. The example is mended by:

    wrap = DDP

Not this rule if
No no_sync: graph/static-graph-violated.

References
https://github.com/pytorch/pytorch/pull/187732
https://github.com/huggingface/accelerate/issues/3679
"""

from __future__ import annotations

from ddpcheck.diagnose.facts.case import Case, Proposal
from ddpcheck.diagnose.proposal import replaced

SLUG = "sync/static-graph-no-sync"
LINK = "reduce"


def detect(case: Case) -> Proposal | None:
    """Proposes it where a static graph is trained with no_sync and fails."""
    if not case.reduce_is_broken or not any(case.rank_facts("static_graph", False)):
        return None
    events = case.rank_facts("events", "")
    if not events or "[" not in events[0]:
        return None
    facts = [
        f"order of forwards (F), backwards (B) and no_sync ( [ ] ): {events[0][:24]}"
    ]
    if case.fault_text:
        facts.append(f"rank 0 raises: {case.fault_text[:100]}")
    found = Proposal(
        slug=SLUG,
        link=LINK,
        summary="static_graph=True with no_sync: DDP takes the unsynchronised backward "
        "for its first iteration",
        facts=tuple(facts),
        fix="static_graph=False, or accumulate without no_sync",
        code="DistributedDataParallel(model, static_graph=False)",
        fixes=("ddp.static_off",),
    )
    if not any(case.rank_facts("nested_backwards", 0)):
        return found
    # Without the static graph DDP does not stand what is recomputed.
    return replaced(
        found,
        fix="accumulate without no_sync",
        code="criterion(model(x), y).backward()  # not within model.no_sync()",
        fixes=("ddp.always_sync",),
    )
