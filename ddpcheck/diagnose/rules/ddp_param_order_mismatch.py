"""Ranks hold their parameters in different orders.

What it means
Ranks hold the same parameters in different orders, and layers get each other's
values.

Why it happens
DDP compares shapes across ranks, not names: parameter i of rank 0 is broadcast to
parameter i of rank 1, and gradients are reduced by position.

How it was found
The names of the wrapped model's parameters are the same on all ranks, in another
order. The run with weights sent by name and gradients averaged by hand decides.

Example
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel as DDP
    torch.manual_seed(0)
    class Net(nn.ModuleDict):
        def forward(self, x):
            return self["b"](self["a"](x).tanh())
    model = Net({"a": nn.Linear(4, 4), "b": nn.Linear(4, 4)})
    batch = torch.randn(8, 4), torch.arange(8) % 4
    def wrap(model):
        if dist.get_rank() == 1:
            model["a"] = model.pop("a")
        return DDP(model)
    loss = nn.CrossEntropyLoss()

Fix
Register modules in the same order on all ranks. The example is mended by:

    wrap = DDP

Not this rule if
The order is the same and the values differ: ddp/rank-local-weights.

References
https://github.com/pytorch/pytorch/issues/73547
https://github.com/pytorch/pytorch/pull/74113
"""

from __future__ import annotations

from ddpcheck.diagnose.facts.case import Case, Proposal

SLUG = "ddp/param-order-mismatch"
LINK = "reduce"


def detect(case: Case) -> Proposal | None:
    """Proposes it where the order of parameters differs between ranks."""
    orders = [tuple(order) for order in case.rank_facts("order", [])]
    if len(set(orders)) < 2 or {frozenset(o) for o in orders} != {frozenset(orders[0])}:  # noqa: PLR2004
        return None
    rank = next(r for r, order in enumerate(orders) if order != orders[0])
    place = next(
        i
        for i, (a, b) in enumerate(zip(orders[0], orders[rank], strict=True))
        if a != b
    )
    return Proposal(
        slug=SLUG,
        link=LINK,
        summary="the ranks hold their parameters in different orders; DDP matches them by "
        "position and shape, so layers get each other's weights and gradients",
        facts=(
            f"parameter {place} is {orders[0][place]} on rank 0 and {orders[rank][place]} "
            f"on rank {rank}",
        ),
        fix="register submodules in the same order on all ranks",
        fixes=("ddp.broadcast",),
        by_hand=True,
    )
