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
again. Or DDP waits for the gradient of one that the model has no more, or ranks raise
over one that has another shape than it had.

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

from ddpcheck.diagnose.facts.case import Case, Proposal
from ddpcheck.diagnose.facts.text import names

SLUG = "ddp/param-replaced-after-wrap"
LINK = "reduce"


def detect(case: Case) -> Proposal | None:
    """Proposes wrapping anew where trained tensors are not those DDP was built with."""
    facts = case.outcome.facts()
    resized = facts.get("resized", [])
    if resized and case.run.faults:
        return _of_resized(resized)
    found, gone = facts.get("replaced", []), facts.get("gone", [])
    if not (found or gone) or not case.reduce_is_broken:
        return None
    return Proposal(
        slug=SLUG,
        link=LINK,
        summary="parameters were replaced after wrapping: DDP's hooks sit on tensors that "
        "are no longer trained",
        facts=(
            f"{len(found)} trained parameters are in no DDP object and are other tensors "
            f"than the model was built with: {names(found)}"
            if found
            else f"{len(gone)} parameters that DDP was built with are none of the model's "
            f"any more, and DDP waits for their gradients: {names(gone)}",
        ),
        fix="copy values into the existing parameters, or wrap last",
        code="model = DistributedDataParallel(module)  # the last thing",
        code_rests_on="trained tensors are not those that DDP was built with",
        fixes=("ddp.rewrap",),
        local=tuple(found),
        or_by_hand=True,
    )


def _of_resized(resized: list[str]) -> Proposal:
    """Returns the proposal for parameters that are given another shape in place.

    No run proves it: whatever holds the node that adds to a gradient, as DDP and an
    average by hand do, expects the gradient's former shape.
    """
    return Proposal(
        slug=SLUG,
        link=LINK,
        summary="parameters were given another shape after wrapping: DDP's hooks and buckets "
        "have the shape that they had",
        facts=(
            f"{len(resized)} parameters had another shape when DDP was built: "
            f"{names(resized)}",
        ),
        fix="resize first, wrap last",
        needs_no_proof=True,
    )
