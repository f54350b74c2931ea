"""A mean over the shard multiplied by the world size.

What it means
A loss that is a mean already is multiplied by the world size.

Why it happens
The factor W undoes DDP's mean. It belongs to a sum over a global count; on a mean
it makes every gradient W times too large.

How it was found
d loss / d output is W * W times the reference's on every rank (W is right), and the
ranks' losses differ. Numbers are equal within 1e-6, or 10 times the tolerance where
that is more. The run with the loss divided by W decides.

Example
    import torch
    import torch.distributed as dist
    from torch import nn
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    batch = torch.randn(8, 4), torch.arange(8) % 3
    def loss(output, target):
        world_size = dist.get_world_size() if dist.is_initialized() else 1
        return world_size * nn.functional.cross_entropy(output, target)

Fix
Leave the factor out: the loss is a mean already. The example is mended by:

    loss = nn.CrossEntropyLoss()

Not this rule if
All ranks have the same reduced loss: collective/backward-double-count.

References
https://github.com/neuralmagic/sparseml/pull/135
https://github.com/ultralytics/ultralytics/issues/18616
"""

from __future__ import annotations

from ddpcheck.diagnose.case import Case, Proposal
from ddpcheck.diagnose.loss import ratio_evidence, ratio_fact, shrinks, with_scale

SLUG = "loss/double-world-scale"
LINK = "loss"


def detect(case: Case) -> Proposal | None:
    """Proposes it for a ratio of W * W on every rank, the losses not replicated."""
    ratio = case.uniform_ratio
    world = case.world_size
    if ratio is None or world == 1 or abs(ratio / world**2 - 1) > case.close:
        return None
    if case.losses_are_one or shrinks(case):
        return None
    return with_scale(case, proposal(case, (ratio_fact(case),)), 1 / world)


def proposal(case: Case, facts: tuple[str, ...]) -> Proposal:
    """Returns the proposal, without a run to prove it."""
    world = case.world_size
    return Proposal(
        slug=SLUG,
        link=LINK,
        summary=f"the loss is a mean over the shard and multiplied by {world} as well: "
        f"every gradient is {world} times one process's",
        facts=facts,
        fix="remove the factor; it belongs to a sum over a global count only",
        code="loss = criterion(output, target)  # without * world_size",
        evidence=ratio_evidence(case),
    )
