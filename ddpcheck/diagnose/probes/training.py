"""One training step of a probe: forward, loss, backward; the optimizer stands still."""

from __future__ import annotations

import contextlib
import types
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from ddpcheck.run import backwards
from ddpcheck.run import model as models
from ddpcheck.run.spec import RunSpec
from ddpcheck.run.steps import split
from ddpcheck.run.surroundings import loss_function
from ddpcheck.target import Target


def step(target: Target, spec: RunSpec, model: nn.Module, batch: Any) -> float | None:
    """Does one step without updating weights; returns the loss where it is known.

    Gradients add up over all backward passes: `zero_grad` does nothing either.
    """
    for parameter in model.parameters():
        # Zeros where a train_step clips or logs what was cut off from the loss.
        wanted = target.train_step is not None and parameter.requires_grad
        parameter.grad = torch.zeros_like(parameter) if wanted else None
    optimizer = models.make_optimizer(target, model)
    optimizer.step = types.MethodType(_nothing, optimizer)  # type: ignore[method-assign]
    optimizer.zero_grad = types.MethodType(_nothing, optimizer)  # type: ignore[method-assign]
    if target.train_step is not None:
        with _roots() as roots:
            target.train_step(model, optimizer, batch)
        return sum(roots) if roots else None
    inputs, targets = split(target, batch)
    output = models.call(model, inputs)
    loss = loss_function(target, spec)
    if loss is None:
        value = output["loss"] if isinstance(output, dict) else output.loss
    else:
        value = loss(output, targets)
    value.backward()
    return float(value.detach())


@contextlib.contextmanager
def _roots() -> Iterator[list[float]]:
    """Yields the values of the scalars from which the step goes backward."""
    roots: list[float] = []

    def run(backward: Any, tensors: Any, *args: Any, **kwargs: Any) -> None:
        if isinstance(tensors, Tensor) and tensors.numel() == 1:
            roots.append(float(tensors.detach()))
        backward(tensors, *args, **kwargs)

    with backwards.outermost(run):
        yield roots


def _nothing(*_: Any, **__: Any) -> None:
    return None
