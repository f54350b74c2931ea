"""Parameters were replaced after wrapping.

What it means
A parameter of the model is another tensor than the one DDP watches.

Why it happens
Hooks and buckets stay with the old tensor. An assignment,
load_state_dict(assign=True) or a new layer after wrapping trains a tensor that
nobody reduces.

How it was found
A trained parameter is in no DDP object and is not the tensor that the model was
built with. DDP built anew decides, or averaging by hand where the step replaces
again.

Example
    import torch
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel as DDP
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    batch = torch.randn(8, 4), torch.arange(8) % 3
    def wrap(model):
        wrapped = DDP(model)
        model[2].weight = nn.Parameter(model[2].weight.detach().clone())
        return wrapped
    loss = nn.CrossEntropyLoss()

Fix
Wrap last, or copy into the old parameter. The example is mended by:

    def wrap(model):
        model[2].weight = nn.Parameter(model[2].weight.detach().clone())
        return DDP(model)

Not this rule if
The parameter was never in the wrapped module: ddp/wrapper-missing.

References
https://github.com/pytorch/pytorch/issues/12603
"""

from __future__ import annotations

from ddpcheck.diagnose.case import Case, Proposal
from ddpcheck.diagnose.text import names

SLUG = "ddp/param-replaced-after-wrap"
LINK = "reduce"


def detect(case: Case) -> Proposal | None:
    """Proposes wrapping anew where trained tensors are not those DDP was built with."""
    found = case.outcome.facts().get("replaced", [])
    if not found or not case.reduce_is_broken:
        return None
    return Proposal(
        slug=SLUG,
        link=LINK,
        summary="parameters were replaced after wrapping: DDP's hooks sit on tensors that "
        "are no longer trained",
        facts=(
            f"{len(found)} trained parameters are in no DDP object and are other tensors "
            f"than the model was built with: {names(found)}",
        ),
        fix="copy values into the existing parameters, or wrap last",
        code="module.load_state_dict(state)  # assign=False",
        fixes=("ddp.rewrap",),
        local=tuple(found),
        or_by_hand=True,
    )
