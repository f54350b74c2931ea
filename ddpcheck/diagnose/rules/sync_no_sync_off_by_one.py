"""The micro-batch that is synchronised is not the last.

What it means
The micro-batch that DDP reduces is not the last one.

Why it happens
What comes after the synchronised backward stays local: mean of the first micro-
batches plus the rank's own last ones.

How it was found
The last backward before the optimizer's step is inside no_sync. Averaging by hand
decides.

Example
    import contextlib
    import torch
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel as DDP
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    batch = torch.randn(8, 4), torch.arange(8) % 3
    def train_step(model, optimizer, batch):
        optimizer.zero_grad()
        for i, (x, y) in enumerate(zip(batch[0].chunk(2), batch[1].chunk(2))):
            held = i == 1 and isinstance(model, DDP)
            with model.no_sync() if held else contextlib.nullcontext():
                (nn.functional.cross_entropy(model(x), y) / 2).backward()
        optimizer.step()

Fix
Leave the last micro-batch outside no_sync. The example is mended by:

    def train_step(model, optimizer, batch):
        optimizer.zero_grad()
        for i, (x, y) in enumerate(zip(batch[0].chunk(2), batch[1].chunk(2))):
            held = i == 0 and isinstance(model, DDP)
            with model.no_sync() if held else contextlib.nullcontext():
                (nn.functional.cross_entropy(model(x), y) / 2).backward()
        optimizer.step()

Not this rule if
no_sync lies between a forward and its backward, or an update takes what a single
backward inside has left: sync/no-sync-scope.

References
https://github.com/modelscope/FunASR/pull/3472
"""

from __future__ import annotations

from ddpcheck.diagnose.facts.case import Case, Proposal
from ddpcheck.diagnose.facts.events import (
    accumulates,
    ends_unsynchronised,
    has_no_reduction,
    is_torn,
)

SLUG = "sync/no-sync-off-by-one"
LINK = "reduce"


def detect(case: Case) -> Proposal | None:
    """Proposes it where the last backward of a step lies inside no_sync."""
    events = case.rank_facts("events", "")
    if not case.reduce_is_broken or not events:
        return None
    if is_torn(events[0]) or not ends_unsynchronised(events[0]):
        return None
    if has_no_reduction(events[0]) or not accumulates(events[0]):
        return None
    return Proposal(
        slug=SLUG,
        link=LINK,
        summary="the micro-batch that DDP reduces is not the last one: what comes after it "
        "stays local",
        facts=(
            "order of DDP forwards (F), backwards (B), no_sync ( [ ] ) and optimizer steps "
            f"(S): {events[0][:32]}",
        ),
        fix="synchronise the last micro-batch of a step",
        code="synced = (i + 1) % k == 0",
        code_rests_on="the last backward of a step is within no_sync, and another is not",
        by_hand=True,
    )
