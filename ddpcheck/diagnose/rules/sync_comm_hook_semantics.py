"""A communication hook returns something else than the mean.

What it means
A communication hook returns something else than the mean.

Why it happens
DDP takes the hook's result as the gradient: a sum is W times the mean, a compressed
one is off by its type's epsilon.

How it was found
register_comm_hook was called, and gradients are not the mean of the local ones. DDP
built anew without the hook decides.

Example
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel as DDP
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    batch = torch.randn(8, 4), torch.arange(8) % 3
    def sum_hook(_, bucket):
        done = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
        return done.then(lambda future: future.value()[0])
    def wrap(model):
        wrapped = DDP(model)
        wrapped.register_comm_hook(None, sum_hook)
        return wrapped
    loss = nn.CrossEntropyLoss()

Fix
Divide by the world size in the hook. The example is mended by:

    def sum_hook(_, bucket):
        bucket.buffer().div_(dist.get_world_size())
        done = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
        return done.then(lambda future: future.value()[0])

Not this rule if
No hook is registered.

References
https://github.com/kubeflow/pytorch-operator/issues/122
https://github.com/pytorch/pytorch/pull/42400
"""

from __future__ import annotations

from ddpcheck.diagnose.case import Case, Proposal
from ddpcheck.diagnose.text import times

SLUG = "sync/comm-hook-semantics"
LINK = "reduce"


def detect(case: Case) -> Proposal | None:
    """Proposes it where a hook was registered and DDP without it is right."""
    count = max(case.rank_facts("comm_hooks", 0), default=0)
    # A hook's result takes the place of what join divides by.
    is_in_doubt = case.reduce_is_broken or any(case.rank_facts("joins", []))
    if not is_in_doubt or not count:
        return None
    return Proposal(
        slug=SLUG,
        link=LINK,
        summary="a communication hook returns something else than the mean of the ranks' "
        "gradients",
        facts=(f"register_comm_hook was called {times(count)}",),
        fix="divide by the world size in the hook; compress only what the tolerance allows",
        code="dist.all_reduce(bucket.buffer().div_(dist.get_world_size()))",
        fixes=("ddp.no_comm_hook",),
    )
