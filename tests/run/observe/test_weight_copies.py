"""Copies of weights in dicts and lists: told by names or order, and by their values."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from ddpcheck.run.observe.weight_copies import keys_of_weights

pytestmark = pytest.mark.usefixtures("seeded")


def _keys(held: Any, model: nn.Module) -> set[Any]:
    return keys_of_weights(held, dict(model.named_parameters()))


def _model() -> nn.Module:
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    model[1].weight.requires_grad_(False)
    return model


def _moved(model: nn.Module, by: float) -> dict[str, torch.Tensor]:
    return {n: p.detach() * (1 + by) for n, p in model.named_parameters()}


@pytest.mark.parametrize("prefix", ["", "module."])
def test_copies_are_known_by_the_names_of_parameters(prefix: str) -> None:
    model = _model()
    held: dict[Any, Any] = {prefix + n: t for n, t in _moved(model, 0.4).items()}
    held |= {"step": torch.ones(()), 3: torch.ones(3), prefix + "0.scale": 1.0}
    names = {prefix + n for n in ("0.weight", "0.bias", "1.weight", "1.bias")}
    assert _keys(held, model) == names


def test_copies_are_known_by_the_order_of_parameters_or_of_trained_ones() -> None:
    model = _model()
    every = list(_moved(model, -0.4).values())
    assert _keys(every, model) == {0, 1, 2, 3}
    assert _keys(tuple(every[:2] + every[3:]), model) == {0, 1, 2}
    assert _keys(every[:2], model) == set()
    assert _keys(every[::-1], model) == set()


def test_what_is_far_from_the_weights_is_no_copy() -> None:
    model = _model()
    assert _keys(_moved(model, 0.6), model) == set()  # 0.36 of the square
    weights = dict(model.named_parameters())
    assert _keys(weights, model) == set()  # itself
    assert _keys({}, model) == set()


def test_weights_of_zeros_tell_nothing() -> None:
    model = nn.Linear(2, 1)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    assert _keys(_moved(model, 0.0), model) == set()


def test_what_is_much_longer_is_not_looked_into() -> None:
    model = _model()
    held: dict[Any, Any] = dict(_moved(model, 0.1))
    held |= {f"word{number}": number for number in range(12)}
    assert len(_keys(held, model)) == 4  # 16 entries, of 4 parameters
    held["word"] = 12
    assert _keys(held, model) == set()
