"""Gradients that a backward pass adds of its own: those of a term that no loss returns.

An autograd function hands its output on as it is, and adds the gradient of a term to
what comes back: the balance loss of experts is often trained so. What backward makes of
the loss it starts from grows with it; what it adds does not. So a loss that counts F
times less, under gradients that are then multiplied by F, leaves F times what is added
and all else as it is.
"""

from __future__ import annotations

from ddpcheck.diagnose.facts.case import Case
from ddpcheck.run.intervention import Interventions, ScaleGradients, ScaleLoss

FACT = (
    "outputs and the loss's gradient at them are right; a part of the parameters' "
    "gradients does not scale with it"
)


def scaled(case: Case, factor: float) -> Interventions:
    """Returns the fixes that give what backward adds of its own `factor` times as much.

    () where something else is wrong before: outputs, the loss, what DDP reduces.
    """
    is_wrong = case.mismatched("gradients", 0) and not case.reduce_is_broken
    if not (is_wrong and case.loss_is_sound) or case.loss_is_global or case.diverging():
        return ()
    return (ScaleLoss(factor=1 / factor), ScaleGradients(factor=factor))
