"""A communication hook, or a step that reduces by itself, does not take the mean.

What it means
A communication hook, or a step that reduces gradients itself, makes something else
of them than their mean.

Why it happens
DDP takes the hook's result as the gradient: a sum is W times the mean, a compressed
one is off by its type's epsilon. So it is without DDP, where the step calls all_reduce
and does not divide.

How it was found
register_comm_hook was called, and gradients are not the mean of the local ones. DDP
built anew without the hook decides. Or a step of several micro-batches sums after each
of them what it has summed before: the run decides in which the ranks' gradients are
summed once, at the update. Or the parameters are in no DDP object, the step
calls collectives, and all gradients are W times the reference's though the loss is
right: the run with all of them divided by W decides.

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
No hook is registered, and DDP reduces all gradients. Or the loss itself is reduced with
gradient, and they are summed once more: collective/backward-double-count.

References
https://github.com/kubeflow/pytorch-operator/issues/122
https://github.com/pytorch/pytorch/pull/42400
"""

from __future__ import annotations

from ddpcheck.diagnose.facts.case import Case, Proposal
from ddpcheck.diagnose.facts.events import common_factor
from ddpcheck.diagnose.facts.text import times
from ddpcheck.diagnose.facts.unused import reduces_by_hand
from ddpcheck.diagnose.proposal import replaced

SLUG = "sync/comm-hook-semantics"
LINK = "reduce"


def detect(case: Case) -> Proposal | None:
    """Proposes it where a hook was registered and DDP without it is right."""
    count = max(case.rank_facts("comm_hooks", 0), default=0)
    # A hook's result takes the place of what join divides by.
    is_in_doubt = case.reduce_is_broken or any(case.rank_facts("joins", []))
    if not count:
        return _by_hand(case)
    found = Proposal(
        slug=SLUG,
        link=LINK,
        summary="a communication hook returns something else than the mean of the ranks' "
        "gradients",
        facts=(f"register_comm_hook was called {times(count)}",),
        fix="divide by the world size in the hook; compress only what the tolerance allows",
        code="dist.all_reduce(bucket.buffer().div_(dist.get_world_size()))",
        fixes=("ddp.no_comm_hook",),
    )
    again = _of_micro_batches(case, found)
    if not is_in_doubt:
        # The loss divides by the world size, for a hook that adds up.
        return replaced(again, speculative=True) if again else _by_hand(case)
    return replaced(found, fallback=again)


def _of_micro_batches(case: Case, found: Proposal) -> Proposal | None:
    """Returns the proposal for a hook that adds up what it has added up before."""
    micros = len(case.probed.reference.micros) if case.probed else 0
    if micros < 2:  # noqa: PLR2004
        return None
    return replaced(
        found,
        summary="a communication hook adds the ranks' gradients up after every micro-batch, "
        "and with them what it has added up before",
        facts=(
            *found.facts,
            f"an update has {micros} backwards; where the ranks' gradients are added up "
            "once, at the update, they train as one process does",
        ),
        fix="reduce in the last micro-batch alone: no_sync around all others, forward and "
        "backward",
        code="with nullcontext() if is_last else model.no_sync():\n"
        "    loss(model(x), y).backward()",
        fixes=("gradients.at_update", f"gradients.scale:{float(case.world_size)!r}"),
    )


def _by_hand(case: Case) -> Proposal | None:
    """Proposes it for a step that adds gradients up over ranks, and does not divide."""
    if not is_summed_by_hand(case) or case.loss_collectives:
        return None
    return Proposal(
        slug=SLUG,
        link=LINK,
        summary="the step itself adds the ranks' gradients up, where their mean is one "
        f"process's: they are {case.world_size} times too large",
        facts=(
            f"all gradients are {case.world_size} times one process's, and the loss is "
            "right; the parameters are in no DDP object, and the step calls collectives",
        ),
        fix="divide by the world size",
        code="dist.all_reduce(p.grad)\np.grad /= dist.get_world_size()",
        fixes=(f"gradients.scale:{1 / case.world_size!r}",),
    )


def is_summed_by_hand(case: Case) -> bool:
    """Returns whether all gradients are W times one process's, and no DDP reduces them.

    The loss is right, were it DDP that reduces.
    """
    factor, world = common_factor(case), case.world_size
    if factor is None or world == 1 or abs(factor / world - 1) > case.close:
        return False
    # Those that are wrong are all that have a gradient.
    trained = case.facts["num_tensors"] - len(case.facts["unused"])
    is_of_all = len(case.mismatched("gradients", 0)) >= trained
    return is_of_all and case.loss_is_sound and reduces_by_hand(case)
