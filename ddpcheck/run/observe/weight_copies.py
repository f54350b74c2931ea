"""Copies of a model's weights that training code keeps in a dict or a list.

An average of the weights is often no module: a dict by the names of the parameters, or
a list in their order. By its values it is told from what else is kept so: gradients,
their squares, how much each weight matters.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

_WRAPPERS = "module."  # how names begin where they are those of a wrapper
_LONG = 4  # times as many entries: an average may keep buffers and steps as well
_NEAR = 0.25  # of the weights' own square norm: what an average is away from them


def keys_of_weights(container: Any, weights: dict[str, nn.Parameter]) -> set[Any]:
    """Returns the keys, or the places in a list, of copies of weights.

    Args:
        container: a dict, a list or a tuple; one that is much longer than the weights
            are many is not looked into.
        weights: a model's, by their names.
    """
    if not 0 < len(container) <= _LONG * len(weights):
        return set()
    if isinstance(container, dict):
        pairs = list(_by_name(container, weights))
    else:
        pairs = list(_by_place(container, list(weights.values())))
    held = [(tensor, weight) for _, tensor, weight in pairs]
    return {key for key, _, _ in pairs} if _are_near(held) else set()


def _by_name(
    held: dict[Any, Any], weights: dict[str, nn.Parameter]
) -> Iterator[tuple[Any, Tensor, Tensor]]:
    for key, value in held.items():
        weight = weights.get(key.removeprefix(_WRAPPERS)) if type(key) is str else None
        if weight is not None and _is_like(value, weight):
            yield key, value, weight


def _by_place(
    held: Iterable[Any], weights: list[nn.Parameter]
) -> Iterator[tuple[Any, Tensor, Tensor]]:
    values = list(held)
    if len(values) != len(weights):
        weights = [w for w in weights if w.requires_grad]
    alike = len(values) == len(weights) and all(map(_is_like, values, weights))
    if alike:
        yield from zip(range(len(values)), values, weights, strict=True)


def _is_like(value: Any, weight: Tensor) -> bool:
    return (
        isinstance(value, Tensor)
        and value is not weight
        and value.shape == weight.shape
        and value.is_floating_point()
    )


def _are_near(pairs: list[tuple[Tensor, Tensor]]) -> bool:
    """Returns whether these are the weights, or nearly; not for weights of zeros."""
    apart = total = 0.0
    with torch.no_grad():
        for tensor, weight in pairs:
            apart += float((tensor.to(weight) - weight).square().sum())
            total += float(weight.square().sum())
    return total > 0 and apart <= _NEAR * total
