"""The backend returns something else than the collective was asked for.

What it means
A collective of the step, or the sum that DDP asks of its process group, does not return
what torch.distributed defines: a sum for an average, a part of a complex number.

Why it happens
Backends implement operations, dtypes and layouts apart from each other, and some are
wrong in silence: an average that is not divided, an imaginary part that is lost, a
kernel that runs on another stream. A function that stands in for a collective may be,
too.

How it was found
Every collective of a step was repeated by its definition on the bytes of all ranks. The
run is equivalent when collectives return that and DDP has the default group.

Example
    import torch
    from torch import distributed as dist, nn
    from torch.nn.parallel import DistributedDataParallel as DDP
    class Backend(dist.ProcessGroup):
        broadcast = lambda self, *args: dist.group.WORLD.broadcast(*args)
        allgather = lambda self, *args: dist.group.WORLD.allgather(*args)
        def allreduce(self, tensors, options):
            work = dist.group.WORLD.allreduce(tensors, options)
            work.wait(), tensors[0].mul_(0.5)
            return work
    torch.manual_seed(0)
    model, loss = nn.Linear(4, 3), nn.CrossEntropyLoss()
    batch = torch.randn(8, 4), torch.arange(8) % 3
    def wrap(model):
        return DDP(model, process_group=Backend(dist.get_rank(), dist.get_world_size()))

Fix
Compare the backend's collectives with their definition before the run, and upgrade it
or use another one. The example is mended by:

    wrap = DDP

Not this rule if
The tensor is a view with gaps, which collectives do not promise to handle
(collective/layout), or it returns what it was asked for and that is the wrong thing.

References
https://github.com/pytorch/pytorch/issues/190007
https://github.com/pytorch/pytorch/issues/162338
"""

from __future__ import annotations

from ddpcheck.diagnose.facts.case import Case, Proposal
from ddpcheck.diagnose.facts.text import number

SLUG = "collective/backend-defect"
LINK = "loss"


def detect(case: Case) -> Proposal | None:
    """Proposes it where a collective returned something else than its definition."""
    found = [defect for defect in case.defects() if defect.is_dense]
    if not found:
        return None
    only_reducer = all(defect.in_reducer for defect in found)
    return Proposal(
        slug=SLUG,
        link="reduce" if only_reducer else LINK,
        summary="a collective returns something else than it was asked for",
        facts=tuple(
            f"{defect.what}: {number(defect.ratio)} times the right result, relative "
            f"difference {number(defect.rel_diff)}"
            for defect in found[:3]
        ),
        fix="compare the backend's collectives with their definition, upgrade it or use "
        "another one",
        fixes=("collectives.exact",),
    )
