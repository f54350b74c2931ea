"""A rank raises where one process does not.

What it means
Code that one process runs to its end raises on a rank.

Why it happens
The code meets what only ranks have: a shard that is smaller or lacks a class, a rank's
number, a wrapped model, a process group. The other ranks wait for it until they are
stopped.

How it was found
One process trained on the global batch; a rank raised, and no other rule names the
cause. The facts have what every rank did last: its frame, its collective, its output.
No fix is run: the exception is the finding, why it is raised is not known.

Example
    import torch
    import torch.distributed as dist
    from torch import nn
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    batch = torch.randn(8, 4), torch.arange(8) % 3
    def loss(output, target):
        if dist.is_initialized() and dist.get_rank() == 1:
            raise ValueError("a shard without the class 2")
        return nn.functional.cross_entropy(output, target)

Fix
Make the code hold for every shard. The example is mended by:

    def loss(output, target):
        return nn.functional.cross_entropy(output, target)

Not this rule if
Ranks had called different collectives before: sync/collective-mismatch. DDP raises
about parameters: the rules of graph/.

References
https://docs.pytorch.org/docs/stable/notes/ddp.html
"""

from __future__ import annotations

from ddpcheck.diagnose.facts import rank_fault
from ddpcheck.diagnose.facts.case import Case, Proposal
from ddpcheck.diagnose.facts.rank_table import named

SLUG = "sync/rank-raised"
LINK = "reduce"  # the others wait there
_FIX = "make this code hold on every rank: for its shard, its rank, the wrapped model"
_OF_INNER = (
    "the wrapper has no {name}: read getattr(model, 'module', model).{name}; what is "
    "called in training has to go through the wrapped model"
)


def detect(case: Case) -> Proposal | None:
    """Proposes it where the first thing to go wrong is an exception."""
    fault = rank_fault.of(case, "raised")
    if fault is None:
        return None
    name, kind = case.rank_facts("lacks", ("", ""))[0]
    return rank_fault.proposal(
        case,
        fault,
        slug=SLUG,
        link=LINK,
        summary=f"{named(fault.ranks)} {rank_fault.verb(fault, 'raise')} "
        f"{rank_fault.message(fault)}{fault.where}; one process does not",
        fix=_FIX if kind in ("", "call") else _OF_INNER.format(name=name),
    )
