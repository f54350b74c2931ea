"""A rank skips a backward.

What it means
A rank skips a backward that the others do.

Why it happens
Reductions are matched by order. The others wait for this rank, or are averaged with
the gradients of its next step.

How it was found
A rank had left a step with fewer backwards than another began in it, when one of them
hung or died. A run confirms it where the ranks train as one process does once they read
the same numbers of their tensors, and decide by these.

Example
    import torch
    import torch.distributed as dist
    from torch import nn
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    batch = torch.randn(8, 4), torch.arange(8) % 3
    def train_step(model, optimizer, batch):
        value = nn.functional.cross_entropy(model(batch[0]), batch[1])
        if not (dist.is_initialized() and dist.get_rank() == 1):
            optimizer.zero_grad()
            value.backward()
            optimizer.step()

Fix
Decide on all ranks alike; a loss to skip is multiplied by 0. The example is mended
by:

    def train_step(model, optimizer, batch):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(batch[0]), batch[1]).backward()
        optimizer.step()

Not this rule if
The rank has had all samples of its shard: data/uneven-batches. All ranks began as many
backwards and differ in other collectives: sync/collective-mismatch. A rank raised, died
or hung before its backward: sync/rank-raised, sync/rank-died, sync/rank-hung. The
optimizer runs the backwards, as often as a loss tells it to: sync/control-desync.

References
https://github.com/pytorch/pytorch/issues/23425
https://github.com/harryhan618/LaneNet/issues/12
"""

from __future__ import annotations

from ddpcheck.diagnose.facts import rank_table, rows
from ddpcheck.diagnose.facts.case import Case, Proposal
from ddpcheck.diagnose.facts.events import optimizer_runs_backwards
from ddpcheck.diagnose.facts.faults import (
    backwards_of_ranks,
    busy_ranks,
    skipped_in,
)
from ddpcheck.diagnose.facts.text import in_group, listed

SLUG = "graph/skipped-backward"
LINK = "reduce"


def detect(case: Case) -> Proposal | None:
    """Proposes it where a rank left out a backward and another waits."""
    calls = backwards_of_ranks(case)
    if not calls or busy_ranks(case.run) or optimizer_runs_backwards(case):
        return None
    step = skipped_in(case)
    if step is None or rows.are_used_up(case, step):
        return None  # stopped before its backward, or without a batch left
    return Proposal(
        slug=SLUG,
        link=LINK,
        summary="a rank skips a backward that the others do: they wait for its gradients, or "
        "meet those of its next step",
        facts=(
            f"backwards begun until then, per rank: {listed(calls)}",
            *rank_table.facts(case),
        ),
        fix="take the decision on all ranks together, or multiply the loss by 0",
        code=in_group("dist.all_reduce(skip, dist.ReduceOp.MAX)")
        + "\nif not skip:  # all decide alike\n    loss.backward()",
        evidence={"ranks": rank_table.rows(case)},
        fixes=("numbers.together",),
        needs_no_proof=True,
        is_attempt=True,
    )
