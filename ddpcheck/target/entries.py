"""Outputs and targets of any layout as one row per entry, and whether they fit.

Shape legend: B batch, S further dimensions of a target, C classes, E entries.
"""

from __future__ import annotations

import torch
from torch import Tensor

IGNORED_CLASS = -100  # the default of torch.nn.functional.cross_entropy


def class_dim(output: Tensor, target: Tensor) -> int:
    """Returns the dimension of the logits that holds the classes: 1 or the last.

    Shapes:
        output: [B, C, *S] or [B, *S, C]; target: [B, *S]. Where both readings fit, it
        is [B, C, *S], as for torch's cross_entropy.

    Raises:
        ValueError: neither reading fits.
    """
    if output.ndim == target.ndim + 1 and output.shape[:1] == target.shape[:1]:
        if output.shape[2:] == target.shape[1:]:
            return 1
        if output.shape[:-1] == target.shape:
            return output.ndim - 1
    sizes = ", ".join(map(str, target.shape))
    raise ValueError(
        f"class targets of shape ({sizes}) need logits of shape [B, C, ...] or "
        f"[B, ..., C], found {tuple(output.shape)}"
    )


def class_first(output: Tensor, target: Tensor) -> Tensor:
    """Returns the logits as [B, C, *S]."""
    return output.movedim(class_dim(output, target), 1)


def rows(output: Tensor, target: Tensor) -> Tensor:
    """Returns the logits as [E, C], the entries in the order of the flat target."""
    last = output.movedim(class_dim(output, target), -1)
    return last.reshape(-1, last.shape[-1])


def is_valid(target: Tensor, ignore: float = IGNORED_CLASS) -> Tensor:
    """Returns which entries count: neither `ignore` nor NaN. Shape: as target."""
    return (target != ignore) & ~target.isnan()


def fitted(output: object, target: object, name: str) -> tuple[Tensor, Tensor]:
    """Returns output and target in the form that the losses take, or raises.

    Booleans become floats, other integers int64; a float target that differs from the
    output only in dimensions of size 1 takes the output's shape.

    Args:
        output: what the model returned.
        target: what the batch holds.
        name: of the loss, for the message.

    Raises:
        ValueError: one line, with what was expected and what was found.
    """
    if not isinstance(output, Tensor) or not output.is_floating_point():
        raise ValueError(_wrong(name, "a float tensor as output", output))
    if not isinstance(target, Tensor):
        raise ValueError(_wrong(name, "a tensor as target", target))
    if target.is_floating_point() or target.dtype == torch.bool:
        return output, _fitted_values(output, target, name)
    return output, _fitted_classes(output, target, name)


def _fitted_values(output: Tensor, target: Tensor, name: str) -> Tensor:
    if _without_ones(output) != _without_ones(target):
        wanted = f"a target of the output's shape {tuple(output.shape)}"
        raise ValueError(_wrong(name, wanted, target))
    values = target.reshape(output.shape)
    return values if values.is_floating_point() else values.to(output.dtype)


def _fitted_classes(output: Tensor, target: Tensor, name: str) -> Tensor:
    try:
        classes = output.shape[class_dim(output, target)]
    except ValueError as error:
        raise ValueError(f"loss {name!r}: {error}") from None
    if classes == 1:
        raise ValueError(_wrong(name, "logits of 2 or more classes", output))
    labels = target.long()
    valid = labels[labels != IGNORED_CLASS]
    if valid.numel() and not 0 <= valid.min() <= valid.max() < classes:
        lowest, highest = int(valid.min()), int(valid.max())
        raise ValueError(
            f"loss {name!r} needs classes 0 to {classes - 1}, one per logit, found "
            f"targets from {lowest} to {highest}"
        )
    return labels


def _without_ones(tensor: Tensor) -> list[int]:
    return [size for size in tensor.shape if size != 1]


def _wrong(name: str, wanted: str, found: object) -> str:
    text = type(found).__name__
    if isinstance(found, Tensor):
        kind = str(found.dtype).removeprefix("torch.")
        text = f"{kind} of shape {tuple(found.shape)}"
    return f"loss {name!r} needs {wanted}, found {text}"
