"""The steps before the one that a probe measures, trained as the run trains them.

A probe uses the batch of the first wrong step with the start weights. What begins
later, such as a schedule or a term that starts in a later epoch, shows only after the
earlier steps; up to there the ranks equal the single-process run.
"""

from __future__ import annotations

import contextlib
from typing import Any, NamedTuple

from torch import Tensor, nn

from ddpcheck.run.interventions import apply as fixes
from ddpcheck.run.model import averaged
from ddpcheck.run.model import model as models
from ddpcheck.run.model.names import Names
from ddpcheck.run.observe import countables
from ddpcheck.run.spec import RunSpec
from ddpcheck.run.steps import Training
from ddpcheck.run.surroundings import bound_noise, loss_function
from ddpcheck.target.target import Target

Rows = tuple[int, int, int]  # first, how many, of how many


class Trained(NamedTuple):
    """What is trained: a model, which it is without its wrapper, and its names then."""

    model: nn.Module
    bare: nn.Module
    names: Names


class _Nobody:
    def take(self, quantity: str, step: int, named: dict[str, Tensor | None]) -> None:
        """Records nothing."""


def train(
    target: Target,
    spec: RunSpec,
    trained: Trained,
    batches: list[Any],
    rows: Rows,
) -> None:
    """Trains one step per batch, on all ranks or in the single-process run.

    Args:
        target: whose loss, or step, it is.
        spec: the run, or the reference.
        trained: the model.
        batches: this process's own.
        rows: which of the global batch they are.
    """
    model, bare, names = trained
    start, size, total = rows
    training = Training(
        target=target,
        model=model,
        optimizer=models.make_optimizer(target, spec, model),
        names=names,
        recorder=_Nobody(),
        spec=spec,
        loss=loss_function(target, spec),
        around_step=lambda _: bound_noise(spec, total, start, size),
    )
    by_hand = averaged.averaging(training.parameters, dict)
    with (
        fixes.around_training(
            spec.fixes,
            lambda: countables.targets_of(target, batches[training.step]),
            lambda: bare,
        ),
        contextlib.nullcontext() if model is bare else by_hand,
    ):
        training.run(iter(batches))
