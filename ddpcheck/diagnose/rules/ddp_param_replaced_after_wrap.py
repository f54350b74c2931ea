"""Parameters were replaced after wrapping."""

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
        or_by_hand=True,
    )
