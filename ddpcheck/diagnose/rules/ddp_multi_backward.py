"""Several backwards after one forward.

What it means
The gradients of the second backward after a forward stay local.

Why it happens
The reducer is armed once per forward of DDP. f f b b and f b b reduce the first
backward alone.

How it was found
The order of the step's events has two backwards with no DDP forward between them,
outside no_sync, and averaging by hand makes the run equal.

Example
    import torch
    from torch import nn
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    batch = torch.randn(8, 4), torch.arange(8) % 3
    def train_step(model, optimizer, batch):
        optimizer.zero_grad()
        first, second = model(batch[0]), model(-batch[0])
        nn.functional.cross_entropy(first, batch[1]).backward()
        nn.functional.cross_entropy(second, batch[1]).backward()
        optimizer.step()

Fix
One backward on the sum, or forward, backward, forward, backward. The example is
mended by:

    def train_step(model, optimizer, batch):
        optimizer.zero_grad()
        first, second = model(batch[0]), model(-batch[0])
        value = nn.functional.cross_entropy(first, batch[1])
        (value + nn.functional.cross_entropy(second, batch[1])).backward()
        optimizer.step()

Not this rule if
f b f b, or accumulation with one backward per forward.

References
https://github.com/pytorch/pytorch/issues/47260
https://github.com/pytorch/pytorch/pull/59359
"""

from __future__ import annotations

from ddpcheck.diagnose.facts.case import Case, Proposal
from ddpcheck.diagnose.facts.events import goes_past_the_wrapper, has_later_backward

SLUG = "ddp/multi-backward"
LINK = "reduce"


def detect(case: Case) -> Proposal | None:
    """Proposes it for a step with more backwards than DDP forwards before them."""
    events = case.rank_facts("events", "")
    if not case.reduce_is_broken or not events:
        return None
    if not has_later_backward(case) or "[" in events[0] or goes_past_the_wrapper(case):
        return None
    return Proposal(
        slug=SLUG,
        link=LINK,
        summary="DDP reduces the first backward after its forward only; the second one's "
        "gradients stay local",
        facts=(
            f"order of DDP forwards (F) and backwards (B) over all steps: {events[0][:24]}",
        ),
        fix="one backward on the sum of the losses, or forward, backward, forward, backward",
        code="(first + second).backward()",
        code_rests_on="several backwards follow one forward of DDP",
        by_hand=True,
    )
