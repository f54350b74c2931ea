"""The cases of the conformance suite, as targets and as predicted trainings."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from ddpcheck.suite.zoo import batches, matrix, models, predict
from ddpcheck.target.losses import LOSSES
from ddpcheck.target.target import Target

Named = dict[str, Tensor]

_LR = 0.1
# A sum over up to 3072 entries takes a step as much larger: at 0.1 three steps amplify
# rounding until float64 cannot tell equal from different.
_LR_OF_SUM = 1e-4


def target(model: str, loss: str, *, dropout: bool = True) -> Target:
    """Returns the target of one case, named "model-loss".

    `unused_head` comes with find_unused_parameters=True: plain DDP raises at its second
    step. SGD at 0.1, for sums at 1e-4.

    Args:
        model: a name of models.MODELS.
        loss: a name of losses.LOSSES.
        dropout: False sets p = 0 in every dropout, as `predicted_training` does.
    """

    def build() -> nn.Module:
        built = models.build(model)
        return built if dropout else models.silence_dropout(built)

    def batch(step: int) -> tuple[Tensor, Tensor]:
        return _batch(model, loss, step)

    def optimizer(params: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(params, lr=_lr(loss))

    return Target(
        name=f"{model}-{loss}",
        model=build,
        batch=batch,
        loss=LOSSES[loss],
        optimizer=optimizer,
        wrap=_finding_unused if models.MODELS[model].unused else None,
    )


def predicted_training(
    model: str,
    loss: str,
    batch_norm: str,
    mode: str,
    world_size: int,
    steps: int,
    dtype: torch.dtype,
    reduce: str = "",
) -> Iterator[tuple[Named, Named]]:
    """Yields the predicted gradients and the weights after them, step by step.

    One process, plain SGD, dropout off. Names are those of model.named_parameters();
    a parameter without gradient has no entry in the gradients.
    """
    trained = models.silence_dropout(models.build(model)).to(dtype)
    if batch_norm == "frozen":
        models.freeze_batch_norm(trained)
    local = matrix.is_batch_norm_local(model, batch_norm, mode)
    for step in range(steps):
        inputs, targets = (_cast(part, dtype) for part in _batch(model, loss, step))
        gradients = predict.predicted_gradients(
            trained,
            loss,
            inputs,
            targets,
            world_size=world_size,
            batch_norm_local=local,
            mode=mode,
            reduce=reduce,
        )
        yield _stepped(trained, gradients, _lr(loss))


def _stepped(
    model: nn.Module, gradients: list[Tensor | None], lr: float
) -> tuple[Named, Named]:
    """Takes one SGD step; returns the gradients and copies of the weights by name."""
    named, weights = {}, {}
    parameters = model.named_parameters()
    for (name, parameter), gradient in zip(parameters, gradients, strict=True):
        if gradient is not None:
            named[name] = gradient
            parameter.data.sub_(gradient, alpha=lr)
        weights[name] = parameter.detach().clone()
    return named, weights


def _batch(model: str, loss: str, step: int) -> tuple[Tensor, Tensor]:
    masked = loss.startswith("masked")
    return batches.batch(models.MODELS[model].kind, step, masked=masked)


def _cast(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    return tensor.to(dtype) if tensor.is_floating_point() else tensor


def _lr(loss: str) -> float:
    return _LR_OF_SUM if loss.startswith("sum") else _LR


def _finding_unused(model: nn.Module) -> nn.Module:
    return nn.parallel.DistributedDataParallel(model, find_unused_parameters=True)
