"""How much a divergence matters for training, in words."""

from __future__ import annotations

from ddpcheck.diagnose.facts.case import Case
from ddpcheck.diagnose.facts.text import number

_ADAPTIVE = (
    "Adam",
    "AdamW",
    "Adamax",
    "NAdam",
    "RAdam",
    "Adagrad",
    "RMSprop",
    "Adadelta",
)


def in_words(case: Case) -> str | None:
    """Returns a sentence on what one factor on all gradients means for training.

    None where the gradients do not differ by one factor: then no learning rate makes
    the run equal.
    """
    ratio = case.uniform_ratio
    if ratio is None or not ratio:
        return None
    factor = ratio / case.world_size
    if abs(factor - 1) <= case.close:
        return None
    if case.direct():
        return None  # a penalty on the weights has no part in it
    optimizer = case.facts["optimizer"]
    rate = case.facts["learning_rate"]
    if any(optimizer.startswith(name) for name in _ADAPTIVE):
        return (
            f"all gradients differ by the factor {number(factor)}; {optimizer} "
            "divides it out again, so weight updates are equal, but clipping, "
            "weight decay in the gradient and epsilon are not "
            "(numeric/scale-invariant-optimizer)"
        )
    if rate is None or _decays(case):
        return f"all gradients differ by the factor {number(factor)}"
    return (
        f"all gradients differ by the factor {number(factor)}: {optimizer} with the "
        f"learning rate {number(rate / factor)} instead of {number(rate)} would "
        "give equal training"
    )


def _decays(case: Case) -> bool:
    """Returns whether the optimizer adds a term that no gradient scales."""
    groups = (group for _, numbers in case.facts["schedule"] for group in numbers)
    return any(group.get("weight_decay") for group in groups)
