"""Gradients that a custom backward adds: those of a term that no loss returns.

An autograd function passes its output on unchanged, and adds the gradient of a term in
its backward: the balance loss of experts is often trained in this way. The gradient of
the loss scales with the loss; the added gradient does not. So with a loss divided by F,
and gradients multiplied by F afterwards, the added gradient is multiplied by F and all
else is unchanged.
"""

from __future__ import annotations

from ddpcheck.diagnose.facts.case import Case
from ddpcheck.run.intervention import Interventions, ScaleGradients, ScaleLoss

FACT = (
    "outputs and the loss's gradient at them are right; a part of the parameters' "
    "gradients does not scale with it"
)


def scaled(case: Case, factor: float) -> Interventions:
    """Returns the fixes that multiply the gradient that backward adds by `factor`.

    () if something before it is wrong: outputs, the loss, the reduction.
    """
    is_wrong = case.mismatched("gradients", 0) and not case.reduce_is_broken
    if not (is_wrong and case.loss_is_sound) or case.loss_is_global or case.diverging():
        return ()
    return (ScaleLoss(factor=1 / factor), ScaleGradients(factor=factor))
